// Thousands of volumes on a phone, light and dark: nothing sticks out, and the page stays small.

import assert from "node:assert/strict";
import { base, isTooWide, open, picture, withPage } from "./browser.mjs";

const SCREENS = ["Overview", "Volumes", "Pools", "Access", "Sessions", "Events", "History", "Lab"];

await withPage({ viewport: { width: 320, height: 640 }, colorScheme: "dark", hasTouch: true, isMobile: true }, async (page) => {
  const lightness = () => page.evaluate(() => {
    const [red, green, blue] = getComputedStyle(document.documentElement).backgroundColor.match(/\d+/g).map(Number);
    return (red + green + blue) / 3;
  });
  await page.goto(base);
  assert.ok(await lightness() < 60, "as the system has it");
  for (const screen of SCREENS) {
    await open(page, screen);
    await page.waitForLoadState("networkidle").catch(() => {});
    assert.equal(await isTooWide(page), false, `${screen} sticks out`);
    await picture(page, `phone-${screen.toLowerCase()}`);
  }
  await open(page, "Volumes");
  await page.getByText("5,000 volumes").waitFor();
  assert.ok(await page.getByRole("row").count() <= 51, "a page of them");
  await page.getByLabel("Filter").fill("v4321");
  await page.getByText("1 of 5,000 volumes").waitFor();
  await page.getByRole("link", { name: "v4321" }).click();
  await page.getByRole("heading", { level: 1, name: "v4321" }).waitFor();
  assert.equal(await isTooWide(page), false, "a volume sticks out");
  await picture(page, "phone-volume");
  await page.goto(`${base}/create`);
  await page.getByLabel("Name", { exact: true }).waitFor();
  assert.equal(await isTooWide(page), false, "the form sticks out");
  // The switch is kept.
  await page.getByLabel("Theme").selectOption("light");
  assert.ok(await lightness() > 200);
  await page.reload();
  await page.getByLabel("Name", { exact: true }).waitFor();
  assert.ok(await lightness() > 200);
  await picture(page, "phone-create");
  // A path that is none of ours is told from one that is.
  await page.goto(`${base}/nowhere`);
  await page.getByText("This page does not exist.").waitFor();
  // A server that is away is told, and is asked again when somebody says so.
  await page.route("**/v1/**", (route) => route.abort());
  await page.goto(`${base}/sessions`);
  await page.getByText("This page may be out of date").waitFor();
  await page.getByRole("alert").filter({ hasText: "check that it runs and is reachable" }).waitFor();
  assert.equal(await isTooWide(page), false, "what is told of it sticks out");
  await picture(page, "phone-lost");
  await page.unroute("**/v1/**");
  await page.getByRole("button", { name: "Retry now" }).click();
  await page.getByText("No initiator is logged in.").waitFor();
  await page.getByText("This page may be out of date").waitFor({ state: "detached" });
}, [/ERR_FAILED/, /status of 404/]);
