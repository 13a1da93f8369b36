// A browser for the console's tests. What it complains of, and whatever it asks of other hosts, fails them.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

/** Where the console is. */
export const base = process.env.SARSEN_CONSOLE;
/** Where pictures go, to be looked at. */
const pictures = process.env.SARSEN_PICTURES;
const LIMIT_MS = 30_000;

/**
 * Opens a browser, lets `work` use a page of it, and prints what that gives as one line of JSON. `expected`
 * are complaints that belong to the test.
 */
export async function withPage(options, work, expected = []) {
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
  });
  try {
    const context = await browser.newContext({ permissions: ["clipboard-read", "clipboard-write"], ...options });
    context.setDefaultTimeout(LIMIT_MS);
    const page = await context.newPage();
    const complaints = [];
    const strangers = [];
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) complaints.push(message.text());
    });
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("request", (request) => {
      if (!request.url().startsWith(base)) strangers.push(request.url());
    });
    let said;
    try {
      said = await work(page, context);
    } catch (error) {
      await picture(page, "failed");
      throw new Error(`at ${page.url()}, with complaints ${JSON.stringify(complaints)}`, { cause: error });
    }
    const unexpected = complaints.filter((text) => !expected.some((pattern) => pattern.test(text)));
    assert.deepEqual(unexpected, [], "the console is quiet");
    assert.deepEqual(strangers, [], "nobody else is asked");
    process.stdout.write(`${JSON.stringify(said ?? null)}\n`);
  } finally {
    await browser.close();
  }
}

/** Keeps a picture of the page. */
export async function picture(page, name) {
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
}

/** Asks the API itself. */
export async function api(page, path) {
  const answer = await page.request.get(`${base}/v1${path}`);
  assert.equal(answer.status(), 200, path);
  return answer.json();
}

/** Waits until the API says so. */
export async function until(page, path, holds) {
  const deadline = performance.now() + LIMIT_MS;
  for (;;) {
    const said = await api(page, path);
    if (holds(said)) return said;
    assert.ok(performance.now() < deadline, `${path} still says ${JSON.stringify(said)}`);
    await page.waitForTimeout(100);
  }
}

/** Goes to a screen by its link. */
export async function open(page, name) {
  await page.getByRole("navigation", { name: "Screens" }).getByRole("link", { name, exact: true }).click();
  await page.getByRole("heading", { level: 1 }).waitFor();
}

/** Whether the page can be scrolled sideways. */
export function isTooWide(page) {
  return page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
}
