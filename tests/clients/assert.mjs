// What javascript.mjs takes of node:assert, for browsers.
function ok(holds, said) {
  if (!holds) throw new Error(said ?? "it does not hold");
}

const plain = (value) => JSON.stringify(value);

export default {
  ok,
  match: (text, pattern) => ok(pattern.test(text), `${text} does not match ${pattern}`),
  equal: (found, wanted) => ok(found === wanted, `${plain(found)} is not ${plain(wanted)}`),
  deepEqual: (found, wanted) => ok(plain(found) === plain(wanted), `${plain(found)} is not ${plain(wanted)}`),
  async rejects(promise, check) {
    const error = await promise.then(() => null, (reason) => reason);
    ok(error !== null && check(error), `it ended with ${error}`);
  },
};
