import { defineConfig } from "vite";

export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    // The page loads nothing from data: URLs, so that the policy it is served with can be strict.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    target: "es2022",
  },
  // For work on the console: a server that runs answers what the page asks.
  server: { proxy: { "/v1": "http://127.0.0.1:3280" } },
});
