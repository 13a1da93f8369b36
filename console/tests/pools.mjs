// A pool, a volume in it, its snapshots, a clone, and all of that deleted. Only who has the token names devices.
// SARSEN_FOLDER is a folder of the server's machine, SARSEN_PROGRAM the program that reads and writes volumes.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { api, base, isTooWide, open, picture, until, withPage } from "./browser.mjs";

const FOLDER = process.env.SARSEN_FOLDER;
const SIZE = 16 << 20;

/** Runs the program with the paths and URLs of disks. */
const disk = (...parameters) => execFileSync(process.env.SARSEN_PROGRAM, ["disk", ...parameters], { stdio: "pipe" });

await withPage({ ignoreHTTPSErrors: true, viewport: { width: 1200, height: 900 } }, async (page) => {
  const dialog = page.getByRole("dialog");
  const heading = (name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
  const alert = (text) => page.getByRole("alert").filter({ hasText: text }).waitFor();
  const row = (name) => page.getByRole("row", { name });
  const said = (text) => page.getByRole("status").filter({ hasText: text }).waitFor();
  const focused = () => page.evaluate(() => document.activeElement.labels?.[0]?.textContent);
  const pool = async () => (await api(page, "/pools/tank")).pool;
  const snapshots = async () => (await api(page, "/snapshots")).snapshots.map(({ name }) => name);
  const toVolume = async (name) => {
    await open(page, "Volumes");
    await page.getByRole("link", { name, exact: true }).click();
    await heading(name);
  };

  await page.goto(base);
  // The last answers without a token are here before it is shown.
  await page.waitForLoadState("networkidle");
  await page.getByLabel("Token").fill(process.env.SARSEN_TOKEN);
  await page.keyboard.press("Enter");
  await heading("Overview");
  // Without pools, the form for volumes does not offer them.
  await page.goto(`${base}/create`);
  await page.getByLabel("Storage").waitFor();
  assert.equal(await page.getByRole("option", { name: "in a pool" }).count(), 0);

  // A pool in a new file. The server's sentences are at the fields.
  await open(page, "Pools");
  await page.getByText("There are no pools.").waitFor();
  await page.getByText("Create or import a pool").click();
  await page.getByLabel("Pool name").fill("Not A Name");
  await page.getByLabel("Path of device 1").fill("relative");
  await page.getByLabel("Size of new file 1").fill("256MiB");
  const create = page.getByRole("button", { name: "Create", exact: true });
  await create.click();
  await alert("use 1 to 64 lower-case letters");
  assert.equal(await focused(), "Pool name");
  await page.getByLabel("Pool name").fill("tank");
  await create.click();
  await alert("write an absolute path");
  assert.equal(await focused(), "Path of device 1");
  await page.getByLabel("Path of device 1").fill(`${FOLDER}/one.pool`);
  await page.getByRole("button", { name: "Add a device" }).click();
  await page.getByLabel("Path of device 2").fill(`${FOLDER}/two.pool`);
  await page.getByLabel("Size of new file 2").fill("256MiB");
  await page.getByLabel("Chunk size").fill("5KiB");
  await create.click();
  await alert("write a power of two");
  assert.equal(await focused(), "Chunk size");
  await page.getByLabel("Chunk size").fill("128KiB");
  await page.getByLabel("Overwrite devices that have data").check();
  await alert("All data on these devices is lost.");
  await page.getByRole("button", { name: "Create, and lose the data on the devices" }).waitFor();
  await picture(page, "pool-create");
  await page.getByLabel("Overwrite devices that have data").uncheck();
  await create.click();
  await said("Pool tank was created.");
  await row(/^tank/).getByText("open", { exact: true }).waitFor();
  await row(/^tank/).getByText(`${FOLDER}/two.pool`).waitFor();
  assert.equal((await pool()).chunk_bytes, 128 << 10);
  assert.equal((await pool()).devices.length, 2);

  // A device with data is not overwritten.
  await page.getByLabel("Pool name").fill("other");
  writeFileSync(`${FOLDER}/data`, Buffer.alloc(SIZE, 7));
  await page.getByLabel("Path of device 1").fill(`${FOLDER}/data`);
  await create.click();
  await alert("has data");
  assert.equal((await api(page, "/pools")).pools.length, 1);

  // A volume in it, from its page.
  await row(/^tank/).getByRole("link", { name: "tank" }).click();
  await heading("tank");
  await page.getByText("The pool has no volumes and no snapshots.").waitFor();
  await page.getByRole("link", { name: "Create a volume in this pool" }).click();
  await heading("Create a volume");
  assert.equal(await page.getByLabel("Storage").inputValue(), "pool");
  await page.waitForFunction(() => document.querySelector("select[name=pool] option[value=tank]")?.textContent.endsWith("free"));
  assert.equal(await page.getByLabel("Pool", { exact: true }).inputValue(), "tank");
  await page.getByLabel("Name", { exact: true }).fill("vm");
  await page.getByLabel("Size").fill("16MiB");
  await page.getByLabel("Clients prove that they know a secret").uncheck();
  await page.getByRole("button", { name: "Create and export" }).click();
  await heading("vm is there");
  const { document: { volume: [vm] } } = await api(page, "/config");
  assert.deepEqual([vm.store, vm.pool, vm.size, vm.path, vm.cache], ["pool", "tank", "16MiB", undefined, undefined]);
  const urlOf = async (name) => (await api(page, "/volumes")).volumes.find((volume) => volume.name === name).urls[0];
  const url = await urlOf("vm");
  const [old, newer] = [1, 2].map((byte) => {
    const file = `${FOLDER}/content-${byte}`;
    writeFileSync(file, Buffer.alloc(SIZE, byte));
    return file;
  });
  disk("write", old, url);

  // Snapshots: created, protected, not protected any more.
  await page.getByRole("link", { name: "Go to volume" }).click();
  await heading("vm");
  await page.getByText("The volume has no snapshots.").waitFor();
  const name = page.getByLabel("Snapshot name");
  const createSnapshot = page.getByRole("button", { name: "Create snapshot" });
  await name.fill("not a name");
  await createSnapshot.click();
  await alert("is no snapshot");
  await name.fill("first");
  await page.getByLabel("Protect it from deletion").check();
  await createSnapshot.click();
  await said("Snapshot vm@first was created.");
  await row(/^vm@first/).getByRole("cell", { name: "yes", exact: true }).waitFor();
  await row(/^vm@first/).getByRole("cell", { name: "16 MiB", exact: true }).waitFor();
  await page.getByRole("button", { name: "Delete vm@first" }).click();
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await dialog.getByRole("alert").filter({ hasText: "protected" }).waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.deepEqual(await snapshots(), ["vm@first"]);
  await page.getByRole("button", { name: "Unprotect vm@first" }).click();
  await said("Snapshot vm@first is not protected any more.");
  await page.getByRole("button", { name: "Protect vm@first", exact: true }).waitFor();
  disk("write", newer, url, "--destroy");
  await name.fill("second");
  await page.getByLabel("Protect it from deletion").uncheck();
  await createSnapshot.click();
  await row(/^vm@second/).waitFor();
  await picture(page, "snapshots");

  // The schedule.
  const schedule = async () => (await api(page, "/config/volume/vm")).object["snapshot-schedule"];
  const preview = page.locator("form").filter({ has: page.getByLabel("Hourly") }).getByRole("button", { name: "Preview changes" });
  await page.getByLabel("Monthly").fill("often");
  await preview.click();
  await alert("is not a whole number");
  assert.equal(await focused(), "Monthly");
  await page.getByLabel("Monthly").fill("0");
  await page.getByLabel("Weekly").fill("5000");
  await preview.click();
  await alert("is no schedule");
  await page.getByLabel("Weekly").fill("4");
  await preview.click();
  await dialog.getByText("snapshot-schedule from unset to weekly=4").waitFor();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await said("The new schedule is in force.");
  assert.equal(await schedule(), "weekly=4");
  await page.waitForFunction(() => document.querySelector("input[name=weekly]").value === "4" && document.querySelector("input[name=monthly]").value === "");
  await page.getByLabel("Weekly").fill("");
  await preview.click();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.equal(await schedule(), undefined);

  // A clone has the data of its snapshot. It is not exported.
  await page.getByRole("link", { name: "Clone vm@first" }).click();
  await heading("Clone vm@first");
  for (const label of ["Size", "Copies", "Stripes"]) assert.equal(await page.getByLabel(label).count(), 0);
  await page.getByLabel("Name", { exact: true }).fill("copy");
  await page.getByLabel("Export it, so that clients can use it").uncheck();
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await heading("copy is there");
  assert.equal((await api(page, "/config/volume/copy")).object["clone-of"], "vm@first");

  // A volume begins with an image, whose size it has.
  await page.goto(`${base}/create?pool=tank`);
  await heading("Create a volume");
  await page.getByLabel("Name", { exact: true }).fill("imaged");
  const image = page.getByLabel("Image", { exact: true });
  await image.fill(`${FOLDER}/missing`);
  assert.equal(await page.getByLabel("Size").inputValue(), "");
  await page.getByLabel("Export it, so that clients can use it").uncheck();
  const createImaged = page.getByRole("button", { name: "Create", exact: true });
  await createImaged.click();
  await alert("does not exist");
  assert.equal(await focused(), "Image");
  await image.fill(old);
  await createImaged.click();
  await alert("is no valid qcow2 image");
  assert.equal(await focused(), "Image");
  await page.getByLabel("Format of the image").selectOption("raw");
  await picture(page, "create-image");
  await createImaged.click();
  await heading("imaged is there");
  await page.getByRole("link", { name: "Go to volume" }).click();
  await heading("imaged");
  await page.getByRole("term").filter({ hasText: "Image" }).waitFor();
  await until(page, "/volumes", ({ volumes }) => volumes.some(({ name, filling }) => name === "imaged" && !filling));
  const imaged = (await api(page, "/config/volume/imaged")).object;
  assert.deepEqual([imaged.size, imaged.image, imaged["image-format"]], [undefined, old, "raw"]);

  // The snapshot itself is served, read-only.
  await toVolume("vm");
  await row(/^vm@first/).getByRole("link", { name: "copy" }).waitFor();
  await page.getByRole("link", { name: "Serve vm@first read-only" }).click();
  await heading("Serve vm@first read-only");
  await page.getByLabel("Name", { exact: true }).fill("backup");
  await page.getByLabel("Clients prove that they know a secret").uncheck();
  await page.getByRole("button", { name: "Create and export" }).click();
  await heading("backup is there");
  const backup = await urlOf("backup");
  disk("verify", backup, old);
  assert.throws(() => disk("write", newer, backup, "--destroy"), "a snapshot is not written");
  disk("verify", backup, old);
  await page.getByRole("link", { name: "Go to volume" }).click();
  await heading("backup");
  await page.getByText("pool, read-only").waitFor();
  for (const term of ["Copies", "Stripes"]) await page.getByRole("term").filter({ hasText: term }).waitFor();
  assert.equal(await page.getByLabel("Snapshot name").count(), 0);

  // Rolling back: not while an initiator uses the volume, unless it is logged out.
  await toVolume("vm");
  await page.getByLabel("Maximum IOPS").fill("1");
  await page.getByLabel("Maximum IOPS").press("Enter");
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await said("The new limits are in force.");
  const reader = spawn(process.env.SARSEN_PROGRAM, ["disk", "verify", url, newer], { stdio: "ignore" });
  const ended = new Promise((resolve) => reader.on("exit", resolve));
  try {
    await until(page, "/sessions", ({ sessions }) => sessions.length > 0);
    await page.getByRole("button", { name: "Roll back to vm@first" }).click();
    await dialog.getByText("Data that initiators have written since then is lost.").waitFor();
    await dialog.getByRole("button", { name: "Roll back", exact: true }).click();
    await dialog.getByRole("alert").waitFor();
    await picture(page, "roll-back");
    await dialog.getByRole("button", { name: "Roll back, and log them out" }).click();
    await said("The volume has the data of snapshot vm@first.");
  } finally {
    reader.kill();
    await ended;
  }
  await page.getByLabel("Maximum IOPS").fill("");
  await page.getByLabel("Maximum IOPS").press("Enter");
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  disk("verify", url, old);

  // The pool's page: what uses the space, and settings.
  await page.getByRole("link", { name: "tank", exact: true }).click();
  await heading("tank");
  const contents = page.getByRole("region", { name: "Volumes and snapshots" });
  for (const name of ["vm", "vm@first", "vm@second", "copy"]) await contents.getByRole("rowheader", { name, exact: true }).waitFor();
  assert.equal(await contents.getByRole("link", { name: "vm@second" }).getAttribute("href"), "/volumes/vm");
  await contents.getByText("volume, clone of vm@first").waitFor();
  await page.getByLabel("Alert at (percent)").fill("101");
  await page.getByRole("button", { name: "Preview changes" }).click();
  await alert("is not a number from 1 to 100");
  // The pool has more data than this.
  await page.getByLabel("Alert at (percent)").fill("1");
  await page.getByRole("button", { name: "Preview changes" }).click();
  await dialog.getByText("alert-percent from unset to 1").waitFor();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await said("The new settings are in force.");
  await until(page, "/problems", ({ problems }) => problems.some(({ kind, name }) => kind === "pool" && name === "tank"));
  await picture(page, "pool");

  // Overview: the problem leads to the pool.
  await open(page, "Overview");
  await row(/^tank/).getByText("MiB of ").waitFor();
  await picture(page, "pool-overview");
  await open(page, "Pools");
  await row(/^tank/).getByText("is nearly full").waitFor();
  await picture(page, "pools");
  await open(page, "Overview");
  await page.getByRole("status").getByRole("link", { name: /pool tank/i }).click();
  await heading("tank");
  await page.setViewportSize({ width: 320, height: 640 });
  for (const screen of ["Pools", "Overview", "Volumes"]) {
    await open(page, screen);
    await page.getByRole("link", { name: /tank/ }).first().waitFor();
    assert.equal(await isTooWide(page), false, `${screen} sticks out`);
    await picture(page, `phone-pools-${screen.toLowerCase()}`);
  }
  await page.getByRole("link", { name: "vm", exact: true }).click();
  await row(/vm@first/).waitFor();
  assert.equal(await isTooWide(page), false, "snapshots stick out");
  await picture(page, "phone-snapshots");
  await page.getByRole("link", { name: "tank", exact: true }).click();
  await row(/^vm@first/).waitFor();
  assert.equal(await isTooWide(page), false, "a pool sticks out");
  await picture(page, "phone-pool");
  await page.setViewportSize({ width: 1200, height: 900 });

  // A pool with volumes is not deleted.
  await page.getByRole("button", { name: "Delete this pool" }).click();
  await dialog.getByText("The data stays on the devices of the pool.").waitFor();
  await dialog.getByRole("alert").filter({ hasText: "delete its volumes first" }).waitFor();
  await picture(page, "pool-delete");
  await dialog.getByRole("button", { name: "Cancel" }).click();

  // A volume is deleted, and its data stays until the orphan is removed.
  for (const [name, text] of [["copy", "stay in pool tank"], ["imaged", "stay in pool tank"], ["backup", "vm@first stays in pool tank"]]) {
    await toVolume(name);
    await page.getByRole("button", { name: "Delete this volume" }).click();
    await dialog.getByText(text).waitFor();
    await dialog.getByRole("button", { name: "Delete", exact: true }).click();
    await heading("Volumes");
  }
  await page.getByText("volume copy in pool tank").waitFor();
  await picture(page, "pool-orphans");
  await page.getByRole("button", { name: "Remove orphan tank/copy" }).click();
  await dialog.getByText("The server removes volume copy in pool tank and the folder of its volume's records.").waitFor();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await until(page, "/orphans", ({ orphans }) => orphans.every(({ name }) => name !== "tank/copy"));

  // Snapshots are deleted, then the volume, then the pool, which can be imported again.
  await toVolume("vm");
  for (const name of ["vm@first", "vm@second"]) {
    await page.getByRole("button", { name: `Delete ${name}` }).click();
    await dialog.getByRole("button", { name: "Delete", exact: true }).click();
    await said(`Snapshot ${name} was deleted.`);
  }
  assert.deepEqual(await snapshots(), []);
  await page.getByRole("button", { name: "Delete this volume" }).click();
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await heading("Volumes");
  await open(page, "Pools");
  await row(/^tank/).getByRole("link", { name: "tank" }).click();
  await page.getByRole("link", { name: "an orphan" }).first().waitFor();
  await page.getByRole("button", { name: "Delete this pool" }).click();
  await dialog.getByText(`${FOLDER}/one.pool`).waitFor();
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await heading("Pools");
  await page.getByText("There are no pools.").waitFor();
  await page.getByText("Create or import a pool").click();
  await page.getByLabel("Method").selectOption("import");
  assert.equal(await page.getByLabel("Size of new file 1").count(), 0);
  await page.getByLabel("Pool name").fill("again");
  await page.getByLabel("Path of device 1").fill(`${FOLDER}/two.pool`);
  await page.getByRole("button", { name: "Add a device" }).click();
  await page.getByLabel("Path of device 2").fill(`${FOLDER}/one.pool`);
  await page.getByRole("button", { name: "Import", exact: true }).click();
  await said("Pool again was imported.");
  await until(page, "/pools/again", ({ pool, contents }) => pool.is_open && contents.some(({ name }) => name === "vm"));
}, [/status of 4\d\d/, /status of 50\d/]);
