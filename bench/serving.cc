// Decodes with a model of weft's: for each line of its input one with what it took.
//
//   weft_bench_serving MODEL [--threads N] [--prompt-rows N]
//     decode BEFORE TOKENS           milliseconds a token, one sequence, BEFORE positions behind it
//     many SEQUENCES BEFORE TOKENS   milliseconds a pass, tokens a second of all
//     prompt SEQUENCES LENGTH        while a prompt of LENGTH arrives: median and 99th percentile of the
//     milliseconds
//                                    between tokens of the others, without it and with it
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "base/rng.h"
#include "bench/numbers.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "serve/engine.h"
#include "serve/service/load.h"

namespace {

using namespace weft;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <typename T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}

class Bench {
 public:
  explicit Bench(serve::Decoder& decoder) : decoder_(decoder) {}

  void decode(int64_t before, int64_t count) {
    const auto sequence = filled(before);
    step({sequence.get()});  // warm
    decoder_.cut(*sequence, before);
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) step({sequence.get()});
    std::printf("%.4f\n", ms_since(begin) / static_cast<double>(count));
  }

  void many(int64_t sequences, int64_t before, int64_t count) {
    std::vector<std::unique_ptr<serve::Sequence>> all;
    std::vector<serve::Sequence*> each;
    for (int64_t i = 0; i < sequences; ++i) {
      all.push_back(filled(before));
      each.push_back(all.back().get());
    }
    step(each);
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) step(each);
    const double pass = ms_since(begin) / static_cast<double>(count);
    std::printf("%.4f %.3f\n", pass, 1000 * static_cast<double>(sequences) / pass);
  }

  void prompt(int64_t sequences, int64_t length, int64_t prompt_rows) {
    serve::Engine engine(decoder_, {.cache_bytes = {int64_t{1} << 40}, .prompt_rows = prompt_rows});
    int64_t first_of_long = 0;
    for (int64_t i = 0; i < sequences; ++i)
      must(engine.add({.prompt = {1}, .sampling = {.temperature = 0}},
                      {[](const auto&) { return true; }, [](auto, const Status&) {}}));
    for (int i = 0; i < 3; ++i) engine.tick();
    std::vector<double> alone, beside;
    for (int i = 0; i < 40; ++i) alone.push_back(tick(engine));
    must(engine.add({.prompt = random_tokens(length), .tokens_max = 1, .sampling = {.temperature = 0}},
                    {[&](const auto&) { return ++first_of_long > 0; }, [](auto, const Status&) {}}));
    while (first_of_long == 0) beside.push_back(tick(engine));
    std::printf("%.3f %.3f %.3f %.3f %zu\n", at(alone, 0.5), at(alone, 0.99), at(beside, 0.5),
                at(beside, 0.99), beside.size());
  }

 private:
  static double tick(serve::Engine& engine) {
    const auto begin = Clock::now();
    engine.tick();
    return ms_since(begin);
  }
  static double at(std::vector<double> values, double part) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(std::lround(part * static_cast<double>(values.size() - 1)))];
  }
  std::vector<int64_t> random_tokens(int64_t count) {
    std::vector<int64_t> tokens;
    tokens.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<int64_t>(rng_.below(static_cast<uint64_t>(decoder_.vocabulary()))));
    return tokens;
  }
  std::unique_ptr<serve::Sequence> filled(int64_t positions) {
    auto sequence = decoder_.begin();
    const std::vector<int64_t> tokens = random_tokens(positions);
    for (int64_t at = 0; at < positions; at += decoder_.rows_max()) {
      const auto count = static_cast<size_t>(std::min(decoder_.rows_max(), positions - at));
      const serve::Piece piece{sequence.get(), std::span(tokens).subspan(static_cast<size_t>(at), count), 0};
      must(decoder_.pass({&piece, 1}));
    }
    return sequence;
  }
  void step(const std::vector<serve::Sequence*>& sequences) {
    const int64_t token = 1;
    std::vector<serve::Piece> pieces;
    pieces.reserve(sequences.size());
    for (serve::Sequence* sequence : sequences) pieces.push_back({sequence, {&token, 1}, 1});
    const dag::Tensor logits = must(decoder_.pass(pieces));
    // As those that it is compared with take the likeliest.
    const auto numbers = logits.as<float>();
    sink_ += std::max_element(numbers.begin(), numbers.end()) - numbers.begin();
  }

  serve::Decoder& decoder_;
  Rng rng_{1, 0};
  int64_t sink_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  int64_t prompt_rows = serve::EngineOptions{}.prompt_rows;
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) threads = weft::bench::number_of<int>(argv[i + 1]);
    if (std::strcmp(argv[i], "--prompt-rows") == 0)
      prompt_rows = weft::bench::number_of<int64_t>(argv[i + 1]);
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: weft_bench_serving MODEL [--threads N] [--prompt-rows N]\n");
    return 2;
  }
  const auto backend = must(peer::make_cpu_backend({.threads = threads}));
  serve::LoadOptions options;
  options.model = argv[1];
  options.verifies = false;
  options.needs_tokenizer = false;
  const serve::LoadedModel model = must(serve::load_model(options, *backend));
  Bench bench(*model.decoder);
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) {
    std::istringstream words(line);
    std::string what;
    int64_t a = 0, b = 0, c = 0;
    words >> what >> a >> b >> c;
    if (what == "decode") bench.decode(a, b);
    if (what == "many") bench.many(a, b, c);
    if (what == "prompt") bench.prompt(a, b, prompt_rows);
  }
}
