// Through every screen, with a client that uses the server. The API says what came of it.

import assert from "node:assert/strict";
import { api, base, open, picture, until, withPage } from "./browser.mjs";

const INITIATOR = process.env.SARSEN_INITIATOR;
const TARGET = process.env.SARSEN_TARGET;

await withPage({ viewport: { width: 1200, height: 900 } }, async (page) => {
  const dialog = page.getByRole("dialog");
  const heading = (name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
  const revision = async () => (await api(page, "/config")).revision;
  const figure = (name) => page.locator(".figure").filter({ has: page.locator("dt", { hasText: new RegExp(`^${name}$`) }) }).locator("dd");

  // History: who changes something says so.
  await page.goto(base);
  await open(page, "History");
  await page.getByLabel("Your name").fill("Ada");
  assert.match((await api(page, "/config/revisions")).revisions[0].author, /@/);

  // Overview: it lives.
  await open(page, "Overview");
  await page.getByText(/1 session\b/).waitFor();
  const isBusy = (text) => /[1-9]/.test(text ?? "");
  await page.waitForFunction(() => [...document.querySelectorAll("dl:not([aria-label=Space]) dd")].every((figure) => /[1-9]/.test(figure.textContent)));
  assert.ok(isBusy(await figure("IOPS").textContent()));
  await page.getByRole("table").getByRole("link", { name: "data" }).waitFor();
  assert.equal(await page.locator(".chart canvas").count(), 3);
  await picture(page, "overview");

  // A volume: what it does, by operation.
  await page.getByRole("table").getByRole("link", { name: "data" }).click();
  await heading("data");
  const read = page.getByRole("row", { name: /^read/ });
  await read.waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].some((row) => /^read[1-9]/.test(row.textContent)));
  assert.match(await read.textContent(), /µs|ms/);
  await page.locator("pre[data-format=qemu]").waitFor();
  await picture(page, "volume");

  // It is limited: what is wrong is told at its field, what it may have is in force, and goes again.
  const limits = async () => {
    const { iops, bandwidth, burst, weight } = (await api(page, "/config/volume/data")).object;
    return { iops, bandwidth, burst, weight };
  };
  const plan = page.getByRole("button", { name: "Preview changes" });
  const isWrong = async (label, told) => {
    await page.getByRole("alert").filter({ hasText: told }).waitFor();
    assert.equal(await page.getByLabel(label).getAttribute("aria-invalid"), "true", label);
    assert.equal(await page.evaluate(() => document.activeElement.labels[0].textContent), label);
  };
  for (const [label, wrong, told, right] of [
    ["Maximum IOPS", "many", "is not a whole number", "400"],
    ["Maximum bandwidth", "fast", "is not a size", "200MiB"],
    ["Burst window", "2h", "from 0s to 3600s", ""],
    ["Weight", "10001", "from 1 to 10000", "150"],
    ["Reserved IOPS", "500", "above iops = 400", ""],
  ]) {
    await page.getByLabel(label).fill(wrong);
    await plan.click();
    await isWrong(label, told);
    await page.getByLabel(label).fill(right);
  }
  await page.getByLabel("Weight").press("Enter");
  await dialog.getByText("iops from unset to 400").waitFor();
  assert.equal((await limits()).iops, undefined, "not before it is confirmed");
  await picture(page, "limits");
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await page.getByText("The new limits are in force.").waitFor();
  assert.deepEqual(await limits(), { iops: 400, bandwidth: "200MiB", burst: undefined, weight: 150 });
  const waited = figure("Had to wait");
  await page.waitForFunction(() => [...document.querySelectorAll(".figure")].some((one) => /^Had to wait[1-9]/.test(one.textContent)));
  assert.match(await waited.textContent(), /[1-9].* a second/);
  await picture(page, "limited");
  for (const label of ["Maximum IOPS", "Maximum bandwidth", "Weight"]) await page.getByLabel(label).fill("");
  await plan.click();
  await dialog.getByText("iops from 400 to unset").waitFor();
  // Somebody else was faster: who it was, and what he did, is told, and it is looked at again.
  const other = await page.request.patch(`${base}/v1/config/volume/idle`, { data: { weight: 7 }, headers: { "sarsen-author": "Bob" } });
  assert.equal(other.status(), 200);
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await dialog.getByText(/Bob, .*volume idle: weight \(unset\) -> 7/).waitFor();
  assert.equal((await limits()).iops, 400);
  await dialog.getByRole("button", { name: "Refresh preview" }).click();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.deepEqual(await limits(), { iops: undefined, bandwidth: undefined, burst: undefined, weight: undefined });
  await page.waitForFunction(() => document.querySelector("input[name=iops]").value === "");

  // It grows while it is used.
  await page.getByLabel("New size").fill("1MiB");
  await page.getByRole("button", { name: "Grow" }).click();
  await dialog.getByRole("alert").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await page.getByLabel("New size").fill("128MiB");
  await page.getByRole("button", { name: "Grow" }).click();
  await dialog.getByText("size from 64MiB to 128MiB").waitFor();
  assert.equal((await api(page, "/config/volume/data")).object.size, "64MiB", "not before it is confirmed");
  await dialog.getByRole("button", { name: "Grow" }).click();
  await page.getByText("The volume has the new size.").waitFor();
  assert.equal((await api(page, "/config/volume/data")).object.size, "128MiB");
  await page.getByText("128 MiB").first().waitFor();

  // It gets another name.
  await page.getByLabel("New name").fill("store");
  await page.getByRole("button", { name: "Rename" }).click();
  await dialog.getByRole("button", { name: "Rename" }).click();
  await heading("store");
  assert.deepEqual(Object.values((await api(page, `/config/target/${encodeURIComponent(TARGET)}`)).object.luns), ["store"]);

  // Volumes: a filter.
  await open(page, "Volumes");
  await page.getByRole("row", { name: /^idle/ }).waitFor();
  await page.getByLabel("Filter").fill("store");
  await page.getByText("1 of 2 volumes").waitFor();
  assert.equal(await page.getByRole("row", { name: /^idle/ }).count(), 0);

  // Access: a host, and who may reach a target.
  await open(page, "Access");
  await page.getByText("Add a host").click();
  await page.getByLabel("Host name").fill("web");
  await page.getByLabel("Its initiators").fill("Not a name");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Its initiators").fill("iqn.2026-11.proof:web*");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByText("Host web was created.").waitFor();
  assert.deepEqual((await api(page, "/config/host/web")).object.initiators, ["iqn.2026-11.proof:web*"]);
  await page.getByRole("button", { name: `Change access to ${TARGET}` }).click();
  await dialog.getByLabel("Host web").check();
  await dialog.getByLabel("Initiators").fill(INITIATOR);
  await dialog.getByRole("button", { name: "Preview changes" }).click();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await page.getByRole("list", { name: "Targets" }).getByText("host web").waitFor();
  const { allow } = (await api(page, `/config/target/${encodeURIComponent(TARGET)}`)).object;
  assert.deepEqual(allow, [{ host: "web" }, { initiator: INITIATOR }]);
  await page.getByRole("button", { name: `Copy the name ${TARGET}` }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), TARGET);
  await picture(page, "access");

  // A host may have so much, and what it has is beside that.
  await page.getByLabel("Its initiators").fill(INITIATOR);
  await page.getByLabel("Host name").fill("client");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByText("Host client was created.").waitFor();
  await page.getByRole("button", { name: "Limits of host client" }).click();
  await page.waitForFunction(() => /IOPS now[1-9]/.test(document.querySelector("dialog")?.textContent ?? ""));
  await dialog.getByLabel("Maximum IOPS").fill("0");
  await dialog.getByRole("button", { name: "Preview changes" }).click();
  await dialog.getByRole("alert").filter({ hasText: "number from 1" }).waitFor();
  assert.equal(await dialog.getByLabel("Maximum IOPS").getAttribute("aria-invalid"), "true");
  await dialog.getByLabel("Maximum IOPS").fill("1200");
  await picture(page, "host-limits");
  await dialog.getByRole("button", { name: "Preview changes" }).click();
  await dialog.getByText("change host client: iops from unset to 1200").waitFor();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await page.getByRole("row", { name: /^client/ }).getByText("maximum 1,200 IOPS").waitFor();
  assert.equal((await api(page, "/config/host/client")).object.iops, 1200);

  // What goes is taken out of the rules that name it; not where everybody would be let in by that.
  await page.getByRole("button", { name: "Remove host web" }).click();
  await dialog.getByText(`change target ${TARGET}`).waitFor();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.deepEqual((await api(page, `/config/target/${encodeURIComponent(TARGET)}`)).object.allow, [{ initiator: INITIATOR }]);
  await page.getByRole("button", { name: "Remove account vm" }).click();
  await dialog.getByRole("alert").filter({ hasText: "every initiator would be permitted" }).waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();

  // Removes CHAP of an existing target and restores it.
  const chapOf = async () => (await api(page, `/config/target/${encodeURIComponent(TARGET)}`)).object.chap;
  for (const [before, after] of [[["vm"], undefined], [undefined, ["vm"]]]) {
    assert.deepEqual(await chapOf(), before);
    await page.getByRole("button", { name: `Change access to ${TARGET}` }).click();
    await dialog.getByLabel("Account vm").click();
    await dialog.getByRole("button", { name: "Preview changes" }).click();
    await dialog.getByText(`change target ${TARGET}: chap`).waitFor();
    await dialog.getByRole("button", { name: /^Change/ }).click();
    await dialog.waitFor({ state: "detached" });
    assert.deepEqual(await chapOf(), after);
  }

  // Accounts and portals.
  await page.getByText("Add an account").click();
  await page.getByLabel("Account name").fill("backup");
  await page.getByRole("region", { name: "Accounts" }).getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("heading", { name: "The secret of account backup" }).waitFor();
  const secret = await page.locator(".secret-line code").textContent();
  await page.getByRole("button", { name: "New secret for account backup" }).click();
  await dialog.getByText("secret from (hidden) to (hidden)").waitFor();
  await dialog.getByRole("button", { name: "Change", exact: true }).click();
  await page.waitForFunction((old) => document.querySelector(".secret-line code").textContent !== old, secret);
  await page.getByRole("button", { name: "Remove account backup" }).click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.deepEqual((await api(page, "/config/account")).account.map(({ name }) => name), ["vm"]);
  await page.getByRole("region", { name: "Portals" }).getByText("opened by the server's flags").first().waitFor();
  await page.getByText("Add a portal").click();
  await page.getByRole("textbox", { name: "Address" }).fill("somewhere");
  const addPortal = page.getByRole("region", { name: "Portals" }).getByRole("button", { name: "Add", exact: true });
  await addPortal.click();
  await page.getByRole("alert").filter({ hasText: "is not an address" }).waitFor();
  await page.getByRole("textbox", { name: "Address" }).fill("127.0.0.1:0");
  await addPortal.click();
  await page.getByText("The server listens at 127.0.0.1:0.").waitFor();
  await picture(page, "accounts");
  await page.getByRole("button", { name: "Remove portal 127.0.0.1:0" }).click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.equal((await api(page, "/config/portal")).portal, undefined);

  // Sessions: what was negotiated; and its client is sent away.
  await open(page, "Sessions");
  const sessions = page.getByRole("list", { name: "Sessions" });
  await sessions.getByText(INITIATOR).first().waitFor();
  await sessions.getByText("1 connection, and negotiated parameters").click();
  const { sessions: [session] } = await until(page, "/sessions", ({ sessions }) => sessions.length > 0);
  const burst = session.connections[0].keys.max_burst_length.toLocaleString("en");
  await sessions.getByText("MaxBurstLength").locator("..").getByText(burst).waitFor();
  await picture(page, "sessions");
  await page.getByRole("button", { name: `Log out ${INITIATOR}` }).click();
  await dialog.getByRole("button", { name: "Log out" }).click();
  await dialog.getByText(/It logged out|Its connections were closed/).waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  await until(page, "/sessions", ({ sessions }) => sessions.every(({ tsih }) => tsih !== session.tsih));

  // A target out of service, and the overview that says so.
  await open(page, "Access");
  await page.getByRole("button", { name: `Take out of service: ${TARGET}` }).click();
  // The console asks for confirmation: when the user cancels, nothing changes.
  await dialog.getByText("Initiators lose its disks").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await api(page, "/targets")).targets.find(({ name }) => name === TARGET).state, "in_service");
  await page.getByRole("button", { name: `Take out of service: ${TARGET}` }).click();
  await dialog.getByRole("button", { name: "Take out of service" }).click();
  await page.getByRole("list", { name: "Targets" }).getByText("out of service", { exact: true }).waitFor();
  assert.equal((await api(page, "/targets")).targets.find(({ name }) => name === TARGET).state, "drained");
  await open(page, "Overview");
  await page.getByText(`Target ${TARGET} is out of service`).waitFor();
  await open(page, "Access");
  await page.getByRole("button", { name: `Put in service: ${TARGET}` }).click();
  await page.getByRole("button", { name: `Take out of service: ${TARGET}` }).waitFor();
  // Its client comes back by itself.
  await until(page, "/sessions", ({ sessions }) => sessions.some(({ target }) => target === TARGET));

  // What is in use goes after it was told whom that interrupts.
  await open(page, "Volumes");
  await page.getByRole("link", { name: "store", exact: true }).click();
  await page.getByRole("button", { name: "Delete this volume" }).click();
  await dialog.getByText(INITIATOR).first().waitFor();
  await dialog.getByText("In use: 1 session is logged out first.").waitFor();
  await dialog.getByText(`remove target ${TARGET}`).waitFor();
  await picture(page, "delete");
  const before = await revision();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal(await revision(), before);
  await page.getByRole("button", { name: "Delete this volume" }).click();
  await dialog.getByRole("button", { name: "Delete, and log them out" }).click();
  await heading("Volumes");
  const { document } = await api(page, "/config");
  assert.deepEqual(document.volume.map(({ name }) => name), ["idle"]);
  assert.deepEqual(document.target.map(({ name }) => name), ["iqn.2026-11.proof:idle"]);
  assert.deepEqual(document.account.map(({ name }) => name), ["vm"], "what was not spoken of stays");

  // A target goes without its volumes.
  await open(page, "Access");
  await page.getByRole("button", { name: "Remove target iqn.2026-11.proof:idle" }).click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  assert.equal((await api(page, "/config/target")).target, undefined);
  assert.equal((await api(page, "/config/volume")).volume.length, 1);

  // A volume that no target serves is exported, with an account that is created for it.
  await open(page, "Volumes");
  await page.getByRole("link", { name: "idle", exact: true }).click();
  await page.getByRole("button", { name: "Export", exact: true }).click();
  await page.getByRole("heading", { name: "The secret of account idle" }).waitFor();
  const { target: [exported] } = await api(page, "/config/target");
  assert.deepEqual([exported.name, exported.luns, exported.chap], ["iqn.2026-11.io.sarsen:idle", { 0: "idle" }, ["idle"]]);

  // A file that belongs to no volume is listed. Without a token the console cannot remove it, and says how to.
  await open(page, "Volumes");
  const isListed = async () => (await api(page, "/orphans")).orphans.map(({ name }) => name);
  assert.deepEqual(await isListed(), ["left.img"]);
  const removeOrphan = page.getByRole("button", { name: "Remove orphan left.img" });
  await removeOrphan.click();
  await dialog.getByText("The data in it is lost.").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.deepEqual(await isListed(), ["left.img"]);
  await picture(page, "orphans");
  await removeOrphan.click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await dialog.getByRole("alert").filter({ hasText: "permitted only at the control socket" }).waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.deepEqual(await isListed(), ["left.img"]);

  // A pool names devices of the server. Without a token the console cannot create one, and says how to.
  await open(page, "Pools");
  await page.getByText("There are no pools.").waitFor();
  await page.getByText("Create or import a pool").click();
  await page.getByLabel("Pool name").fill("tank");
  await page.getByLabel("Path of device 1").fill("/dev/null");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("alert").filter({ hasText: "permitted only at the control socket" }).waitFor();

  // Events: the failed login is explained.
  await open(page, "Events");
  await page.getByLabel("Kind").selectOption("login_refused");
  const log = page.getByRole("list", { name: "Events" });
  await log.getByText("wrong secret").first().waitFor();
  await log.getByText("What to do:").first().waitFor();
  assert.equal(await log.getByText("logged in").count(), 0, "the filter leaves others out");
  await picture(page, "events");

  // History: all of it, with a name.
  await open(page, "History");
  await page.getByText("volume store").first().waitFor();
  const { revisions } = await api(page, "/config/revisions");
  // Whoever is on this machine may say any name.
  assert.equal(revisions[0].author, "api on the loopback: Ada");
  await picture(page, "history");

  // The lab's results, with what was published beside them.
  await open(page, "Lab");
  await page.getByRole("link", { name: /^lunden/ }).click();
  await page.locator("td.published").first().waitFor();
  const whole = page.getByRole("link", { name: "Full report" });
  assert.match(await whole.getAttribute("href"), /^\/v1\/lab\/runs\/1\/report\?format=html$/);
  const report = await page.request.get(new URL(await whole.getAttribute("href"), base).href);
  assert.match(report.headers()["content-security-policy"], /sandbox/);
  await picture(page, "lab");
}, [/status of 4\d\d/]);
