// Secrets for CHAP.

/** Without letters that are taken for one another when a secret is typed. */
const LETTERS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/** The longest that Windows takes; the shortest that RFC 7143 wants is 12. */
const LENGTH = 16;

/** A new secret, about 93 bits strong. */
export function newSecret(): string {
  let secret = "";
  while (secret.length < LENGTH) {
    const [byte] = crypto.getRandomValues(new Uint8Array(1));
    const index = byte! & 63;
    // Every letter is equally likely: what is over is thrown away.
    if (index < LETTERS.length) secret += LETTERS[index];
  }
  return secret;
}
