// At an address that wants it, the console asks for the token before it shows anything.

import assert from "node:assert/strict";
import { base, picture, withPage } from "./browser.mjs";

await withPage({ ignoreHTTPSErrors: true, viewport: { width: 320, height: 640 } }, async (page, context) => {
  assert.ok(base.startsWith("https://"));
  await page.goto(`${base}/volumes`);
  await page.getByRole("heading", { name: "Show the token" }).waitFor();
  await picture(page, "token");
  const field = page.getByLabel("Token");
  await field.fill("not the token at all");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").filter({ hasText: "this is not the token" }).waitFor();
  await field.fill(process.env.SARSEN_TOKEN);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Volumes", exact: true }).waitFor();
  await page.getByRole("link", { name: "data" }).waitFor();
  const [cookie, ...others] = await context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.secure, cookie.sameSite, others.length], [true, true, "Strict", 0]);
  await page.reload();
  await page.getByRole("link", { name: "data" }).waitFor();
  // Who has the token can remove a file that belongs to no volume.
  const removeOrphan = page.getByRole("button", { name: "Remove orphan left.img" });
  await removeOrphan.click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
  await removeOrphan.waitFor({ state: "detached" });
  const { orphans } = await (await page.request.get(`${base}/v1/orphans`)).json();
  assert.deepEqual(orphans, []);
  await context.clearCookies();
  await page.reload();
  await page.getByRole("heading", { name: "Show the token" }).waitFor();
}, [/status of 40[01]/]);
