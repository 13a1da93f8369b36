// Screens by the path of the page.

import { useEffect, useState } from "preact/hooks";

const MOVED = "console:moved";

/** Goes to another screen. */
export function navigate(path: string): void {
  history.pushState(null, "", path);
  dispatchEvent(new Event(MOVED));
}

/** Follows links within the console without loading the page again. */
export function followLinks(event: MouseEvent): void {
  const link = (event.target as Element).closest?.("a");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || link.target || link.origin !== location.origin) return;
  if (link.pathname.startsWith("/v1/") || link.hash) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
}

/** The parts of the path, decoded. */
export function usePath(): string[] {
  const [path, setPath] = useState(location.pathname);
  useEffect(() => {
    const moved = () => setPath(location.pathname);
    addEventListener("popstate", moved);
    addEventListener(MOVED, moved);
    return () => {
      removeEventListener("popstate", moved);
      removeEventListener(MOVED, moved);
    };
  }, []);
  return path.split("/").filter(Boolean).map(decode);
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
