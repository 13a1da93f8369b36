// Light or dark: as the system has it, unless the reader chose.

export type Theme = "system" | "light" | "dark";

const KEPT = "sarsen-theme";
const CHANGED = "console:theme";

/** What was chosen. */
export function theme(): Theme {
  const kept = localStorage.getItem(KEPT);
  return kept === "light" || kept === "dark" ? kept : "system";
}

/** Shows the page in a theme, and keeps it for the next visit. */
export function setTheme(chosen: Theme): void {
  localStorage.setItem(KEPT, chosen);
  showTheme();
}

/** Shows the page in the theme that was chosen. */
export function showTheme(): void {
  document.documentElement.dataset.theme = theme();
  dispatchEvent(new Event(CHANGED));
}

/** Calls back when colours change, by choice or by the system. */
export function onThemeChange(callback: () => void): () => void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  addEventListener(CHANGED, callback);
  system.addEventListener("change", callback);
  return () => {
    removeEventListener(CHANGED, callback);
    system.removeEventListener("change", callback);
  };
}
