// How a tokenizer file encodes texts, and how fast. bench/tokenizers/against_hf.sh compares both with Hugging
// Face's library.
//   weft_bench_tokenizers ids TOKENIZER.json TEXTS [plain]
//       the ids of each text of a file of JSON strings, one a line; plain: control tokens are text, and
//       nothing is put before or behind
//   weft_bench_tokenizers decode TOKENIZER.json IDS
//       the other way round: a line of ids becomes a JSON string; control tokens are left out
//   weft_bench_tokenizers speed TOKENIZER.json TEXT [SECONDS]
//       MB a second of one thread's own time, the median of rounds that take SECONDS (3) together; TEXT is
//       encoded line by line
//   weft_bench_tokenizers --smoke
//       both, by weft's tokenizer of bytes and a small file
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/numbers.h"
#include "text/tokenizer.h"

namespace weft::text {
namespace {

[[noreturn]] void stop(const std::string& message) {
  std::fprintf(stderr, "weft_bench_tokenizers: %s\n", message.c_str());
  std::exit(1);
}
template <typename T>
T value_of(Result<T> result) {
  if (!result) stop(result.error().message);
  return std::move(*result);
}

// What the thread computed, whoever else uses the machine.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
std::string read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) stop(std::string("cannot read ") + path);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line + "\n");
  return lines;
}

void print_ids(const Tokenizer& tokenizer, const std::string& texts, const EncodeOptions& options) {
  std::string out;
  for (const std::string& line : lines_of(texts)) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    out.clear();
    for (const TokenId id : value_of(tokenizer.encode(text, options)))
      out += (out.empty() ? "" : " ") + std::to_string(id);
    std::printf("%s\n", out.c_str());
  }
}

void print_texts(const Tokenizer& tokenizer, const std::string& lines) {
  for (const std::string& line : lines_of(lines)) {
    std::istringstream in(line);
    std::vector<TokenId> ids;
    for (TokenId id = 0; in >> id;) ids.push_back(id);
    std::printf("%s\n", nlohmann::json(tokenizer.decode(ids)).dump().c_str());
  }
}

// MB/s of `work`, the median of rounds.
template <typename Work>
double speed(size_t bytes, double seconds, Work&& work) {
  std::vector<double> rounds;
  for (const double end = now() + seconds; rounds.size() < 3 || now() < end;) {
    const double began = now();
    work();
    rounds.push_back(now() - began);
  }
  std::nth_element(rounds.begin(), rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2),
                   rounds.end());
  return static_cast<double>(bytes) / rounds[rounds.size() / 2] * 1e-6;
}

void print_speed(const Tokenizer& tokenizer, const std::string& text, double seconds) {
  const std::vector<std::string> lines = lines_of(text);
  std::vector<std::vector<TokenId>> ids(lines.size());
  size_t count = 0;
  const double encode = speed(text.size(), seconds / 2, [&] {
    count = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      ids[i] = value_of(tokenizer.encode(lines[i]));
      count += ids[i].size();
    }
  });
  size_t decoded = 0;
  const double decode = speed(text.size(), seconds / 2, [&] {
    decoded = 0;
    for (const auto& each : ids) decoded += tokenizer.decode(each).size();
  });
  std::printf("%s: encode %.1f MB/s, decode %.1f MB/s; %zu bytes, %zu tokens, %zu bytes decoded\n",
              std::string(tokenizer.kind()).c_str(), encode, decode, text.size(), count, decoded);
}

Tokenizer load(const char* path) {
  const std::string bytes = read_file(path);
  const double began = now();
  Tokenizer tokenizer = value_of(parse_tokenizer_json(bytes));
  std::fprintf(stderr, "loaded in %.0f ms: %s, %zu tokens\n", 1e3 * (now() - began),
               std::string(tokenizer.kind()).c_str(), tokenizer.vocabulary_size());
  return tokenizer;
}

constexpr const char* kSmall =
    R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<0x0A>": 0, "a": 1,
  "b": 2, "ab": 3, "<0x63>": 4}, "merges": ["a b"]}, "decoder": {"type": "Sequence", "decoders":
  [{"type": "ByteFallback"}, {"type": "Fuse"}]}})";

int smoke() {
  const Tokenizer small = value_of(parse_tokenizer_json(kSmall));
  print_ids(small, "\"abac\\n\"\n\"\"\n", {});
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 3 == 0 ? "abba\n" : "cabab\n";
  print_speed(small, text, 0.02);
  print_speed(Tokenizer::bytes(), text, 0.02);
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--smoke") == 0) return smoke();
  if (argc < 4)
    stop(
        "usage: ids TOKENIZER.json TEXTS [plain] | decode TOKENIZER.json IDS | speed TOKENIZER.json TEXT "
        "[SECONDS] | --smoke");
  const Tokenizer tokenizer = load(argv[2]);
  const std::string text = read_file(argv[3]);
  if (std::strcmp(argv[1], "speed") == 0) {
    print_speed(tokenizer, text, argc > 4 ? weft::bench::number_of<double>(argv[4]) : 3);
  } else if (std::strcmp(argv[1], "decode") == 0) {
    print_texts(tokenizer, text);
  } else {
    EncodeOptions options{.special = SpecialTokens::Recognized};
    if (argc > 4) options = {.special = SpecialTokens::AsText, .adds_frame = false};
    print_ids(tokenizer, text, options);
  }
  return 0;
}

}  // namespace
}  // namespace weft::text

// What is thrown ends a bench, as it should.
int main(int argc, char** argv) { return weft::text::run(argc, argv); }
