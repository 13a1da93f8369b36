// The devices of a pool: added, replaced, removed, kept and missing, with volumes that have copies, and scrubs.
// SARSEN_FOLDER is a folder of the server's machine, SARSEN_PROGRAM the program that reads and writes volumes.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { truncateSync, writeFileSync } from "node:fs";
import { api, base, isTooWide, open, picture, until, withPage } from "./browser.mjs";

const FOLDER = process.env.SARSEN_FOLDER;
const SIZE = 16 << 20;
const DEVICE_SIZE = "256MiB";

/** Runs the program with the paths and URLs of disks. */
const disk = (...parameters) => execFileSync(process.env.SARSEN_PROGRAM, ["disk", ...parameters], { stdio: "pipe" });

await withPage({ ignoreHTTPSErrors: true, viewport: { width: 1200, height: 900 } }, async (page) => {
  const dialog = page.getByRole("dialog");
  const heading = (name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
  const alert = (text, place = page) => place.getByRole("alert").filter({ hasText: text }).waitFor();
  const said = (text) => page.getByRole("status").filter({ hasText: text }).waitFor();
  const focused = () => page.evaluate(() => document.activeElement.labels?.[0]?.textContent);
  const path = (name) => `${FOLDER}/${name}.pool`;
  const devices = page.getByRole("region", { name: "Devices" });
  const device = (name) => devices.getByRole("row", { name: path(name) });
  const online = (name) => device(name).getByText("online", { exact: true }).waitFor();
  const press = (name) => devices.getByRole("button", { name, exact: true }).click();
  const pool = async () => (await api(page, "/pools/tank")).pool;
  const toPool = async () => {
    await open(page, "Pools");
    await page.getByRole("row", { name: /^tank/ }).getByRole("link", { name: "tank" }).click();
    await heading("tank");
  };
  /** Shows another answer to the next questions for the pool: what lasts only a moment on a small pool. */
  const pretend = async (change) => {
    await page.route("**/v1/pools/tank", async (route) => {
      const response = await route.fetch();
      const answer = await response.json();
      change(answer.pool);
      await route.fulfill({ response, json: answer });
    });
    return () => page.unrouteAll({ behavior: "wait" });
  };

  await page.goto(base);
  // The last answers without a token are here before it is shown.
  await page.waitForLoadState("networkidle");
  await page.getByLabel("Token").fill(process.env.SARSEN_TOKEN);
  await page.keyboard.press("Enter");
  await heading("Overview");

  // A pool with two devices.
  await open(page, "Pools");
  await page.getByText("Create or import a pool").click();
  await page.getByLabel("Pool name").fill("tank");
  await page.getByLabel("Path of device 1").fill(path("one"));
  await page.getByLabel("Size of new file 1").fill(DEVICE_SIZE);
  await page.getByRole("button", { name: "Add a device" }).click();
  await page.getByLabel("Path of device 2").fill(path("two"));
  await page.getByLabel("Size of new file 2").fill(DEVICE_SIZE);
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await said("Pool tank was created.");

  // A volume with two copies. The server refuses other numbers than its ranges, at their fields.
  await toPool();
  for (const name of ["one", "two"]) await online(name);
  await device("one").getByRole("cell", { name: "256 MiB", exact: true }).waitFor();
  await page.getByRole("link", { name: "Create a volume in this pool" }).click();
  await heading("Create a volume");
  await page.getByText("Devices of the pool that are online: 2.").waitFor();
  await page.getByLabel("Storage").selectOption("file");
  assert.equal(await page.getByLabel("Copies").count() + await page.getByLabel("Stripes").count(), 0);
  await page.getByLabel("Storage").selectOption("pool");
  await page.getByLabel("Name", { exact: true }).fill("vm");
  await page.getByLabel("Size").fill("16MiB");
  await page.getByLabel("Clients prove that they know a secret").uncheck();
  const create = page.getByRole("button", { name: "Create and export" });
  for (const [label, wrong, text, right] of [["Copies", "4", "from 1 to 3", "3"], ["Copies", "3", "fewer devices than the volume has copies", "2"], ["Stripes", "17", "from 1 to 16", "many"], ["Stripes", "many", "many", "2"]]) {
    await page.getByLabel(label).fill(wrong);
    await create.click();
    await alert(text);
    assert.equal(await focused(), label);
    await page.getByLabel(label).fill(right);
  }
  await picture(page, "pool-copies");
  await create.click();
  await heading("vm is there");
  const { object } = await api(page, "/config/volume/vm");
  assert.deepEqual([object.mirror, object.stripes], [2, 2]);
  const url = (await api(page, "/volumes")).volumes[0].urls[0];
  const content = `${FOLDER}/content`;
  writeFileSync(content, Buffer.alloc(SIZE, 1));
  disk("write", content, url);
  await page.getByRole("link", { name: "Go to volume" }).click();
  await heading("vm");
  const facts = page.getByRole("definition");
  await page.getByRole("term").filter({ hasText: "Copies" }).waitFor();
  await page.getByRole("term").filter({ hasText: "Stripes" }).waitFor();
  assert.equal(await facts.filter({ hasText: /^2$/ }).count(), 2);

  // Each of the two devices has a copy: neither can be removed.
  await toPool();
  await page.getByRole("region", { name: "Volumes and snapshots" }).getByRole("row", { name: /^vm/ }).getByRole("cell", { name: "2", exact: true }).first().waitFor();
  await press(`Remove ${path("one")}`);
  await dialog.getByText("moves the data of the device to the other devices").waitFor();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await alert("add a device first", dialog);
  await picture(page, "device-remove");
  await dialog.getByRole("button", { name: "Cancel" }).click();

  // A third device. The server's sentences are at the fields.
  await devices.getByText("Add a device").click();
  const newPath = devices.getByLabel("Path of the new device");
  const newSize = devices.getByLabel("Size of a new file");
  const add = devices.getByRole("button", { name: "Add", exact: true });
  assert.equal(await add.isDisabled(), true);
  await newPath.fill("relative");
  await add.click();
  await alert("write an absolute path", devices);
  assert.equal(await focused(), "Path of the new device");
  await newPath.fill(path("three"));
  await newSize.fill("much");
  await add.click();
  await alert("much", devices);
  assert.equal(await focused(), "Size of a new file");
  await newPath.fill(content);
  await newSize.fill("");
  await add.click();
  await alert("has data", devices);
  assert.equal(await focused(), "Path of the new device");
  // The server forgets the path that it refused.
  await until(page, "/pools/tank", ({ pool: { devices } }) => devices.length === 2);
  await devices.getByLabel("Overwrite data on the device").check();
  await alert("All data on this device is lost.", devices);
  await devices.getByRole("button", { name: "Add, and lose the data on the new device" }).waitFor();
  await picture(page, "device-add");
  await devices.getByLabel("Overwrite data on the device").uncheck();
  await newPath.fill(path("three"));
  await newSize.fill(DEVICE_SIZE);
  await add.click();
  await said(`${path("three")} was added to the pool.`);
  await online("three");
  assert.equal(await newPath.inputValue(), "");

  // One is replaced, by keyboard alone. It leaves, and its data stays.
  await devices.getByRole("button", { name: `Replace ${path("two")}`, exact: true }).focus();
  await page.keyboard.press("Enter");
  await dialog.getByText("Then it removes the old device.").waitFor();
  await dialog.getByLabel("Path of the new device").fill(path("three"));
  await page.keyboard.press("Enter");
  await alert("already", dialog);
  assert.equal(await focused(), "Path of the new device");
  await dialog.getByLabel("Path of the new device").fill(path("four"));
  await dialog.getByLabel("Size of a new file").fill(DEVICE_SIZE);
  await picture(page, "device-replace");
  await page.keyboard.press("Enter");
  await said(`${path("four")} was added to the pool. The removal of ${path("two")} has begun.`);
  await online("four");
  await device("two").waitFor({ state: "detached" });
  assert.deepEqual((await pool()).devices.map((one) => one.path).sort(), ["one", "three", "four"].map(path).sort());
  disk("verify", url, content);

  // A device that is being removed is kept.
  let stop = await pretend(({ devices }) => Object.assign(devices.find((one) => one.path === path("one")), { is_leaving: true, stale_bytes: 3 << 20 }));
  await device("one").getByText("is being removed: its data moves to other devices").waitFor();
  await device("one").getByText("3 MiB to be copied to it").waitFor();
  assert.equal(await device("one").getByRole("button").count(), 1);
  await picture(page, "device-leaves");
  const kept = page.waitForRequest((request) => request.method() === "PATCH");
  await press(`Keep ${path("one")}`);
  assert.deepEqual((await kept).postDataJSON(), { path: path("one"), is_leaving: false });
  await said(`${path("one")} stays in the pool.`);
  await stop();
  await device("one").getByRole("button", { name: `Remove ${path("one")}`, exact: true }).waitFor();

  // One is removed.
  await press(`Remove ${path("four")}`);
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await said(`The removal of ${path("four")} has begun.`);
  await device("four").waitFor({ state: "detached" });
  disk("verify", url, content);

  // A scrub: its progress, its end, and its result.
  const scrub = page.getByRole("region", { name: "Scrub" });
  await scrub.getByText("No scrub has ended since the server started.").waitFor();
  stop = await pretend((pool) => Object.assign(pool.scrub, { is_running: true, percent: 42 }));
  await scrub.getByText("42 % done").waitFor();
  assert.equal(await scrub.getByRole("progressbar", { name: "Scrub" }).getAttribute("aria-valuenow"), "42");
  await picture(page, "scrub");
  const stopped = page.waitForResponse((response) => response.request().method() === "DELETE");
  await scrub.getByRole("button", { name: "Stop scrub" }).click();
  assert.equal((await stopped).status(), 200);
  await stop();
  await scrub.getByRole("button", { name: "Start scrub" }).click();
  await scrub.getByText("Last scrub").waitFor();
  const { scrub: { last } } = await pool();
  assert.ok(last.read_bytes > 2 * SIZE, `both copies are read: ${last.read_bytes}`);
  assert.deepEqual([last.repaired_bytes, last.lost_bytes], [0, 0]);
  for (const fact of ["Read", "Repaired", "Differing", "Lost"]) await scrub.getByRole("term").filter({ hasText: fact }).waitFor();
  await scrub.getByRole("definition").filter({ hasText: /^0 bytes$/ }).first().waitFor();
  await picture(page, "pool-devices");
  // One that is stopped at once leaves a result.
  await page.evaluate(async () => {
    for (const method of ["POST", "DELETE"]) await fetch("/v1/pools/tank/scrub", { method, headers: { "content-type": "application/json" } });
  });
  await until(page, "/pools/tank", ({ pool: { scrub } }) => !scrub.is_running && scrub.last !== null);

  // A device fails. The pool is degraded, and says so wherever it is shown.
  truncateSync(path("three"), 4096);
  const again = `${FOLDER}/again`;
  writeFileSync(again, Buffer.alloc(SIZE, 2));
  disk("write", again, url, "--destroy");
  await device("three").getByText("not in use: ").waitFor();
  await page.getByText("is degraded: it serves its volumes without a device").waitFor();
  await page.getByRole("definition").getByText("degraded", { exact: true }).waitFor();
  disk("verify", url, again);
  await picture(page, "pool-degraded");
  await open(page, "Pools");
  await page.getByRole("row", { name: /^tank/ }).getByText("degraded", { exact: true }).waitFor();
  await page.getByRole("row", { name: /^tank/ }).getByText(`${path("three")}, not in use`).waitFor();
  await picture(page, "pools-degraded");
  await open(page, "Overview");
  await page.getByRole("status").getByRole("link", { name: "is degraded" }).click();
  await heading("tank");

  // On a phone.
  await page.setViewportSize({ width: 320, height: 640 });
  await device("three").waitFor();
  assert.equal(await isTooWide(page), false, "devices stick out");
  await picture(page, "phone-devices");
  await page.setViewportSize({ width: 1200, height: 900 });

  // Another device takes its place.
  await press(`Replace ${path("three")}`);
  await dialog.getByLabel("Path of the new device").fill(path("five"));
  await dialog.getByLabel("Size of a new file").fill(DEVICE_SIZE);
  await dialog.getByRole("button", { name: "Replace", exact: true }).click();
  await online("five");
  await device("three").waitFor({ state: "detached" });
  await page.getByRole("definition").getByText("open", { exact: true }).waitFor();
  await until(page, "/problems", ({ problems }) => problems.length === 0);
  disk("verify", url, again);
}, [/status of 4\d\d/, /status of 50\d/]);
