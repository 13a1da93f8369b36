// Lines to paste where a volume is to be used. The server writes them; a secret that is known here, because it
// has just been made, is put where they want it.

import { useId, useState } from "preact/hooks";
import { segment, useResource } from "../api";
import { Copy, Trouble } from "./basics";

interface AccessPath {
  portal: string;
  protocol: string;
  group: number;
  tls: boolean;
  formats: { format: string; lines: string[] }[];
}

const NAMES: Record<string, string> = {
  qemu: "QEMU",
  iscsiadm: "Linux (iscsiadm)",
  esxi: "ESXi",
  windows: "Windows",
  ipxe: "iPXE",
  libiscsi: "URL",
  nbd: "NBD",
};

/** What is made of the secret before the server's lines can be pasted, and the lines with it. */
function withSecret(format: string, lines: string[], file: string, secret: string | null): string[] {
  if (secret === null) return lines;
  switch (format) {
    case "windows": return [`Set-Content -NoNewline -Path ${file} -Value '${secret}'`, ...lines];
    case "ipxe": return lines.map((line) => (line === "set password SECRET" ? `set password ${secret}` : line));
    case "libiscsi": case "nbd": return lines;
    // printf is a part of the shell: the secret is in no list of processes.
    default: return [`(umask 077; printf %s '${secret}' > ${file})`, ...lines];
  }
}

/** The lines for one target. */
export function Lines(props: { target: string; account?: string | undefined; secret: string | null }) {
  const { target, account, secret } = props;
  const [format, setFormat] = useState("qemu");
  const group = useId();
  const file = `${account ?? "san"}.secret`;
  const query = new URLSearchParams({ host: location.hostname, secret_file: file });
  if (account) query.set("user", account);
  const { data, error } = useResource<{ paths: AccessPath[] }>(`/targets/${segment(target)}/lines?${query}`, 30000);
  if (error) return <section><h2>Use it</h2><Trouble error={error} /></section>;
  if (!data) return null;
  const protocol = format === "nbd" ? "nbd" : "iscsi";
  const paths = data.paths.filter((way) => way.protocol === protocol).map((way) => {
    const lines = way.formats.find((one) => one.format === format)?.lines;
    return { ...way, lines: lines ? withSecret(format, lines, file, secret) : null };
  });
  const unsupported = protocol === "nbd"
    ? "This target requires CHAP, which NBD does not have."
    : "This client does not support TLS; put stunnel in front of it.";
  return (
    <section class="use">
      <h2>Use it</h2>
      <fieldset class="tabs">
        <legend class="hidden">Commands for</legend>
        {Object.entries(NAMES).map(([value, name]) => (
          <label>
            <input type="radio" name={group} value={value} checked={format === value} onChange={() => setFormat(value)} />
            <span>{name}</span>
          </label>
        ))}
      </fieldset>
      {paths.length === 0 && <p class="quiet">No {protocol === "nbd" ? "NBD" : "iSCSI"} portal serves this target.</p>}
      {paths.map(({ portal, tls, lines }) => (
        <div class="paste" key={portal}>
          <div class="paste-head">
            <span>By {portal}{tls && ", TLS"}</span>
            {lines && <Copy text={`${lines.join("\n")}\n`} what={`lines for ${NAMES[format]} by ${portal}`} />}
          </div>
          {lines ? <pre tabIndex={0} data-format={format}>{lines.join("\n")}</pre> : <p class="quiet">{unsupported}</p>}
        </div>
      ))}
      {account && secret === null && (
        <p class="quiet">The account is {account}. Its secret is expected in the file <code>{file}</code>; the server does not show it again.</p>
      )}
    </section>
  );
}
