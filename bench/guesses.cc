// What guessed tokens bring in a ring of stages over slow links: the engine itself, on a clock that is
// computed. Four stages of 2 ms a pass, links of 20 Mbit/s, rows of 3 kB; guesses are right by a coin.
//
//   weft_bench_guesses [--stage-ms 2] [--row-ms 0.3] [--tokens 4000] [--smoke]
//
// For each round trip between machines and each acceptance, tokens/s of 1 to 64 streams: by way of the
// client, who asks each stage in turn; the ring without guesses; guesses of one pass at a time, as many as
// are best; guesses in passes under way. `bound`: G / (C + L + (G - 1) tau), with G = 1 / (1 - acceptance), C
// + L once round, tau a stage's pass.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench/numbers.h"
#include "tests/serve/virtual_ring.h"

namespace {

using namespace weft::serve::testing;

// Guesses behind the pending token of one pass at a time, as many as are best; nobody waits for others.
double synchronous_rate(const RingTimes& times, int streams, double acceptance) {
  double best = 0, tokens = 0, right = 1;
  for (int64_t rows = 1; rows <= 64; ++rows) {
    tokens += right;
    right *= acceptance;
    const double round = kStages * (times.compute(rows) + times.hop_ms + RingTimes::wire(rows));
    best = std::max(best, 1000 * streams * tokens / round);
  }
  return best;
}

void print_row(const RingTimes& base, double round_trip_ms, double acceptance, int streams, int64_t tokens) {
  RingTimes times = base;
  times.hop_ms = round_trip_ms / 2;
  const double round = times.once_round(), g = 1 / (1 - acceptance);
  const double tau = times.slowest();
  const size_t passes = passes_of(times);
  const double client =
      1000 * streams / (kStages * (times.stage_ms + round_trip_ms + 2 * RingTimes::wire(1)));
  const RingRate plain = rate_of(times, streams, tokens, passes, 0, 0);
  const double synchronous = synchronous_rate(times, streams, acceptance);
  const RingRate in_flight = rate_of(times, streams, tokens, passes, acceptance, 7);
  const double bound = std::min(streams * 1000 * g / (round + (g - 1) * tau), 1000 / tau);
  std::printf(
      "round_trip_ms=%g acceptance=%.2f streams=%d passes=%zu client=%.2f ring=%.2f ring_of_bound=%.3f "
      "synchronous=%.2f in_flight=%.2f bound=%.2f of_bound=%.3f times_client=%.2f times_ring=%.3f "
      "guesses_right=%.3f\n",
      round_trip_ms, acceptance, streams, passes, client, plain.tokens_a_second,
      plain.tokens_a_second * round / 1000 / streams, synchronous, in_flight.tokens_a_second, bound,
      in_flight.tokens_a_second / bound, in_flight.tokens_a_second / client,
      in_flight.tokens_a_second / plain.tokens_a_second, in_flight.accepted);
}

}  // namespace

int main(int argc, char** argv) {
  RingTimes times;
  int64_t tokens = 4000;
  bool is_smoke = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--smoke") == 0) is_smoke = true;
    if (i + 1 == argc) break;
    if (std::strcmp(argv[i], "--stage-ms") == 0) times.stage_ms = weft::bench::number_of<double>(argv[i + 1]);
    if (std::strcmp(argv[i], "--row-ms") == 0) times.row_ms = weft::bench::number_of<double>(argv[i + 1]);
    if (std::strcmp(argv[i], "--tokens") == 0) tokens = weft::bench::number_of<int64_t>(argv[i + 1]);
  }
  if (is_smoke) tokens = 50;
  for (const double round_trip : {0.2, 40.0, 100.0})
    for (const double acceptance : {0.0, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95})
      for (const int streams : {1, 4, 16, 64})
        if (!is_smoke || (streams == 1 && acceptance > 0.7))
          print_row(times, round_trip, acceptance, streams, std::max<int64_t>(50, tokens / streams));
  return 0;
}
