// The token is asked for, at an address that others reach, too.

import { useState } from "preact/hooks";
import { type Refused, ask } from "../api";
import { Field, Heading } from "../parts/basics";

export function Token(props: { onUnlocked: () => void }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await ask("POST", "/login", { token: token.trim() });
      props.onUnlocked();
    } catch (refused) {
      setError((refused as Refused).message);
      setBusy(false);
    }
  };
  return (
    <form class="narrow" onSubmit={submit} noValidate>
      <Heading title="Token">Show the token</Heading>
      <Field
        label="Token"
        error={error}
        hint={<>It is in the server's state folder, in <code>api.token</code>, or in the file that <code>token-file</code> names.</>}
      >
        {(attributes) => (
          <input {...attributes} type="password" autocomplete="current-password" value={token}
            onInput={(event) => setToken(event.currentTarget.value)} />
        )}
      </Field>
      <button class="primary" disabled={busy}>Continue</button>
    </form>
  );
}
