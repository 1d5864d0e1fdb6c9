// Figures from successive snapshots of /engine.json: rates by the engine's own clock, quantiles of what a minute brought.

const RATE_SECONDS = 3;
const QUANTILE_SECONDS = 60;

export class Rates {
  #snapshots = [];

  add(view) {
    const last = this.#snapshots.at(-1);
    // A restarted server counts from zero.
    if (last && view.seconds < last.seconds) this.#snapshots.length = 0;
    this.#snapshots.push({
      seconds: view.seconds,
      generated: view.tokens.generated,
      first: view.time_to_first_token,
      gap: view.inter_token_latency,
    });
    while (this.#snapshots.length > 2 && this.#snapshots[1].seconds < view.seconds - QUANTILE_SECONDS) {
      this.#snapshots.shift();
    }
  }

  // Tokens a second, or null before there are two snapshots.
  tokensPerSecond() {
    const now = this.#snapshots.at(-1);
    const before = this.#snapshots.findLast((one) => one.seconds <= now.seconds - RATE_SECONDS) ?? this.#snapshots[0];
    if (before === now) return null;
    return (now.generated - before.generated) / (now.seconds - before.seconds);
  }

  // Seconds; null when nothing came. name: "first" or "gap".
  quantile(name, q) {
    const now = this.#snapshots.at(-1)[name];
    const before = this.#snapshots[0][name];
    const fresh = now.counts.map((value, i) => value - before.counts[i]);
    // The page has just opened: all that the server knows.
    const counts = fresh.some((value) => value > 0) || this.#snapshots.length > 2 ? fresh : now.counts;
    return quantileOf(now.bounds, counts, q);
  }
}

// counts[i]: values up to bounds[i]; the last, larger ones. Within a bucket values are taken to be spread evenly.
export function quantileOf(bounds, counts, q) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (total === 0) return null;
  let rank = q * total;
  for (let i = 0; i < counts.length; ++i) {
    if (rank <= counts[i] && counts[i] > 0) {
      const low = i === 0 ? 0 : bounds[i - 1];
      return i === bounds.length ? low : low + ((bounds[i] - low) * rank) / counts[i];
    }
    rank -= counts[i];
  }
  return bounds.at(-1);
}
