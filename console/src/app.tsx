// The page around the screens.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { AGAIN, LOCKED } from "./api";
import { connect, useLive } from "./live";
import { followLinks, usePath } from "./router";
import { Access } from "./screens/access";
import { Create } from "./screens/create";
import { Events } from "./screens/events";
import { History } from "./screens/history";
import { Lab } from "./screens/lab";
import { Overview } from "./screens/overview";
import { PoolDetail } from "./screens/pool";
import { Pools } from "./screens/pools";
import { Sessions } from "./screens/sessions";
import { Token } from "./screens/token";
import { VolumeDetail } from "./screens/volume";
import { Volumes } from "./screens/volumes";
import { type Theme, setTheme, theme } from "./theme";

const SCREENS = [
  ["", "Overview"],
  ["volumes", "Volumes"],
  ["pools", "Pools"],
  ["access", "Access"],
  ["sessions", "Sessions"],
  ["events", "Events"],
  ["history", "History"],
  ["lab", "Lab"],
] as const;

export function App() {
  const path = usePath();
  const [locked, setLocked] = useState(false);
  useEffect(() => {
    const lock = () => setLocked(true);
    addEventListener(LOCKED, lock);
    return () => removeEventListener(LOCKED, lock);
  }, []);
  if (locked) {
    const unlocked = () => {
      setLocked(false);
      connect();
    };
    return <main id="main"><Token onUnlocked={unlocked} /></main>;
  }
  return (
    <div onClick={followLinks}>
      <a class="skip" href="#main">Skip to content</a>
      <header>
        <a class="brand" href="/">sarsen</a>
        <nav aria-label="Screens">
          {SCREENS.map(([where, name]) => (
            <a href={`/${where}`} aria-current={(path[0] ?? "") === where ? "page" : undefined}>{name}</a>
          ))}
        </nav>
        <ThemeSwitch />
      </header>
      <Lost />
      <main id="main" tabIndex={-1}>{screen(path)}</main>
    </div>
  );
}

function screen(path: string[]): ComponentChildren {
  const [where, name, ...rest] = path;
  if (rest.length === 0) {
    if (where === "volumes" && name !== undefined) return <VolumeDetail name={name} key={name} />;
    if (where === "pools" && name !== undefined) return <PoolDetail name={name} key={name} />;
    if (where === "lab") return <Lab run={name} />;
  }
  if (where === "create" && name === undefined) return <Create />;
  if (name === undefined) {
    switch (where) {
      case undefined: return <Overview />;
      case "volumes": return <Volumes />;
      case "pools": return <Pools />;
      case "access": return <Access />;
      case "sessions": return <Sessions />;
      case "events": return <Events />;
      case "history": return <History />;
    }
  }
  return <p>This page does not exist. <a href="/">Go to overview</a></p>;
}

/** Says when This page may be out of date. */
function Lost() {
  const { link } = useLive();
  const askNow = () => {
    dispatchEvent(new Event(AGAIN));
    connect();
  };
  return (
    <div role="status" class="lost-place">
      {link === "lost" && (
        <p class="lost">
          The server does not answer. This page may be out of date; it retries every few seconds.
          <button type="button" onClick={askNow}>Retry now</button>
        </p>
      )}
    </div>
  );
}

function ThemeSwitch() {
  const [chosen, setChosen] = useState(theme());
  const choose = (value: Theme) => {
    setTheme(value);
    setChosen(value);
  };
  return (
    <label class="theme">
      <span>Theme</span>
      <select value={chosen} onChange={(event) => choose(event.currentTarget.value as Theme)}>
        <option value="system">System</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}
