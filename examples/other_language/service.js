// A service in another language: it sells from the same stock as the Celery task, under the same
// lock, with the npm package `redlock`, which knows nothing of celery-redlock.
//
//   node service.js try          take the lock if it is free: say "taken" or "refused", and give it back
//   node service.js hold         take it, say "taken", give it back when stdin ends
//   node service.js sell NUMBER  sell so often, each time under the lock

"use strict";

const fs = require("fs");
const path = require("path");
const Redis = require("ioredis");
const Redlock = require("redlock");

// The task's lock_key, "stock:{item}", and before it redlock_key_prefix as it is by default.
const KEY = "redlock:stock:umbrella";
// Not renewed: this client has no watchdog. It has to be longer than any sale can take.
const TTL = 30000;

const [what, number] = process.argv.slice(2);
const nodes = process.env.REDLOCK_NODES.split(",").map((url) => new Redis(url));
const redlock = new Redlock(nodes, {
  retryCount: what === "try" ? 0 : -1, // -1: as often as it takes
  retryDelay: 50,
  retryJitter: 50,
});

async function sellOne() {
  const shop = process.env.SHOP_DIRECTORY;
  const stock = path.join(shop, "stock");
  const inside = path.join(shop, "inside");
  // Fails if there is one: then somebody else is selling at this moment.
  fs.mkdirSync(inside);
  const left = Number(fs.readFileSync(stock, "utf8"));
  await new Promise((resolve) => setTimeout(resolve, 10));
  fs.writeFileSync(stock, String(left - 1));
  fs.rmdirSync(inside);
}

async function main() {
  if (what === "try" || what === "hold") {
    let lock;
    try {
      lock = await redlock.lock(KEY, TTL);
    } catch (error) {
      if (!(error instanceof Redlock.LockError)) throw error;
      console.log("refused");
      return;
    }
    console.log("taken");
    if (what === "hold") for await (const _ of process.stdin);
    await lock.unlock();
  } else {
    for (let sold = 0; sold < Number(number); sold += 1) {
      const lock = await redlock.lock(KEY, TTL);
      await sellOne();
      await lock.unlock();
    }
  }
}

main()
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  })
  .finally(() => nodes.forEach((node) => node.disconnect()));
