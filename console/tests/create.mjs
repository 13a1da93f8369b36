// From an empty server to a volume that can be used, by keyboard alone.

import assert from "node:assert/strict";
import { api, base, isTooWide, picture, withPage } from "./browser.mjs";

await withPage({ viewport: { width: 1000, height: 900 } }, async (page) => {
  const keyboard = page.keyboard;
  const focused = () => page.evaluate(() => {
    const { activeElement: element } = document;
    return element.labels?.[0]?.textContent ?? element.textContent;
  });
  /** Goes on with Tab until it is at a control of that name. */
  const tabTo = async (name) => {
    for (let steps = 0; steps < 60; steps += 1) {
      await keyboard.press("Tab");
      if ((await focused())?.startsWith(name)) return assertSeen();
    }
    assert.fail(`Tab does not lead to ${name}`);
  };
  const assertSeen = async () => {
    const width = await page.evaluate(() => {
      const element = document.activeElement;
      const shown = element.type === "radio" ? element.nextElementSibling : element;
      return getComputedStyle(shown).outlineWidth;
    });
    assert.notEqual(width, "0px", "what has the focus shows it");
  };

  await page.goto(base);
  await page.getByText("No problems.").waitFor();
  await tabTo("Create the first volume");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "Create a volume" }).waitFor();
  await tabTo("Name");
  await keyboard.type("Not A Name");
  await tabTo("Create and export");
  await keyboard.press("Enter");
  // The server's own sentence is at the field, which has the focus.
  const name = page.getByLabel("Name", { exact: true });
  await page.getByRole("alert").filter({ hasText: "use 1 to 64 lower-case letters" }).waitFor();
  assert.equal(await name.getAttribute("aria-invalid"), "true");
  assert.equal((await focused()), "Name");
  await keyboard.press("ControlOrMeta+a");
  await keyboard.type("data");
  await tabTo("Size");
  await keyboard.press("ControlOrMeta+a");
  await keyboard.type("huge");
  await keyboard.press("Enter");
  await page.getByRole("alert").filter({ hasText: "is not a size" }).waitFor();
  assert.equal((await focused()), "Size");
  await keyboard.press("ControlOrMeta+a");
  await keyboard.type("64MiB");
  await tabTo("Account");
  await keyboard.press("ControlOrMeta+a");
  await keyboard.type("vm");
  await picture(page, "create");
  await tabTo("Create and export");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "data is there" }).waitFor();

  const secret = await page.locator("#secret").textContent();
  assert.match(secret, /^[a-zA-Z2-9]{16}$/);
  await tabTo("Copy");
  await keyboard.press("Enter");
  await page.getByText("Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), secret);
  await page.locator("pre[data-format=qemu]").first().waitFor();
  await picture(page, "created");
  const lines = {};
  await tabTo("QEMU");
  for (const [format, marker] of [["qemu", "qemu-img info"], ["iscsiadm", "iscsiadm -m node"], ["esxi", "esxcli iscsi"], ["windows", "Connect-IscsiTarget"], ["ipxe", "sanboot iscsi:"], ["libiscsi", "iscsi://vm@"]]) {
    const text = page.locator(`pre[data-format=${format}]`).first();
    await text.waitFor();
    lines[format] = await text.textContent();
    assert.ok(lines[format].includes(marker), `${format}: ${lines[format]}`);
    assert.equal(lines[format].includes(secret), format !== "libiscsi", `${format}: ${lines[format]}`);
    await keyboard.press("ArrowRight");
  }
  await page.getByText("No NBD portal serves this target.").waitFor();
  const { document } = await api(page, "/config");
  assert.equal(document.volume[0].size, "64MiB");
  assert.deepEqual(document.target[0].chap, ["vm"]);
  assert.ok(!JSON.stringify(document).includes(secret), "the secret is not shown again");
  assert.equal(await isTooWide(page), false);
  await tabTo("Go to volume");
  await keyboard.press("Enter");
  await page.getByRole("heading", { name: "data", exact: true }).waitFor();
  assert.ok(!(await page.locator("body").textContent()).includes(secret), "nor by the page");
  return { secret, lines };
}, [/status of 400/]);
