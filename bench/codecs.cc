// What each codec costs and what it saves: GB/s of float32 in and out on one thread, ratio, and relative
// error on normal numbers, on heavy tails (Student's t of 3 degrees of freedom) and on those after a Relu.
// memcpy stands above for comparison.
//   weft_bench_codecs [ISA [MILLIONS ...]]
// ISA is the set of loops: baseline, v3 or v4 (-: the best of this processor). MILLIONS are the sizes of the
// tensors, 1 and 16 of 2^20 floats by default.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/rng.h"
#include "bench/numbers.h"
#include "compress/codec.h"
#include "compress/loops/table.h"

namespace weft::compress {
namespace {

const char* const kNames[] = {"dense",
                              "fp16",
                              "bf16",
                              "int8",
                              "int6",
                              "int4",
                              "int3",
                              "int8z",
                              "int4z",
                              "int3z",
                              "topk:0.001:fp16",
                              "topk:0.01:fp32",
                              "topk:0.01:fp16",
                              "topk:0.01:int8",
                              "topk:0.01:int4",
                              "topk:0.1:fp16",
                              "topk:0.1:int4",
                              "topk:0.01:int8+int4",
                              "topk:0.01:int8+int3",
                              "randomk:0.01:fp16",
                              "randomk:0.1:fp16"};

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// GB/s of `bytes`, the best of several times.
template <typename Function>
double speed(size_t bytes, Function&& function) {
  double best = 1e9;
  for (int time = 0; time < (bytes < (8u << 20) ? 20 : 5); ++time) {
    const double start = thread_seconds();
    function();
    best = std::min(best, thread_seconds() - start);
  }
  return static_cast<double>(bytes) / best * 1e-9;
}

struct Tensors {
  std::vector<float> normal, heavy, relu;
};

Tensors make_tensors(size_t count) {
  Tensors all;
  Rng rng(1, 1);
  for (size_t i = 0; i < count; ++i) {
    const double z = rng.normal(), a = rng.normal(), b = rng.normal(), c = rng.normal();
    all.normal.push_back(static_cast<float>(z));
    all.heavy.push_back(static_cast<float>(z / std::sqrt((a * a + b * b + c * c) / 3)));
    all.relu.push_back(static_cast<float>(std::max(z, 0.0)));
  }
  return all;
}

class Bench {
 public:
  explicit Bench(size_t count) : tensors_(make_tensors(count)), out_(count) {}

  void run() {
    const size_t bytes = out_.size() * sizeof(float);
    std::printf("\n%zu M floats, memcpy %.1f GB/s\n%-20s %8s %8s %8s %8s | %8s %8s %8s %8s\n",
                out_.size() >> 20,
                speed(bytes, [&] { std::memcpy(out_.data(), tensors_.normal.data(), bytes); }), "", "encode",
                "decode", "ratio", "error", "t3", "relu", "r.encode", "r.ratio");
    for (const char* name : kNames) row(name);
  }

 private:
  size_t encode_it(const Codec& codec, const std::vector<float>& x) {
    payload_.resize(wire_bytes(codec, x.size()));
    return encode(codec, x, draw_, payload_, scratch_).value_or(0);
  }
  double error(const Codec& codec, const std::vector<float>& x) {
    const size_t bytes = encode_it(codec, x);
    return relative_error(codec, x, draw_, std::span(payload_).first(bytes), scratch_);
  }

  void row(const char* name) {
    const Codec codec = *parse(name);
    const size_t bytes = out_.size() * sizeof(float);
    size_t sent = 0;
    const double relu = speed(bytes, [&] { sent = encode_it(codec, tensors_.relu); });
    const double relu_ratio = static_cast<double>(bytes) / static_cast<double>(sent);
    const double to = speed(bytes, [&] { sent = encode_it(codec, tensors_.normal); });
    const double from =
        speed(bytes, [&] { (void)decode(codec, draw_, std::span(payload_).first(sent), out_); });
    std::printf("%-20s %8.2f %8.2f %8.2f %8.4f | %8.4f %8.4f %8.2f %8.2f\n", name, to, from,
                static_cast<double>(bytes) / static_cast<double>(sent), error(codec, tensors_.normal),
                error(codec, tensors_.heavy), error(codec, tensors_.relu), relu, relu_ratio);
  }

  Tensors tensors_;
  std::vector<float> out_;
  std::vector<std::byte> payload_;
  Scratch scratch_;
  Draw draw_{.seed = 1};
};

}  // namespace
}  // namespace weft::compress

int main(int count, char** arguments) {
  using namespace weft::compress;
  const bool chosen = count > 1 && std::strcmp(arguments[1], "-") != 0;
  const LoopTable* table = chosen ? loops_for(arguments[1]) : &loops();
  if (table == nullptr) {
    std::fprintf(stderr, "this processor has no %s\n", arguments[1]);
    return 2;
  }
  const ForcedLoops forced(*table);
  std::printf("loops: %s", table->isa);
  std::vector<size_t> sizes;
  for (int i = 2; i < count; ++i)
    sizes.push_back(std::clamp(weft::bench::number_of<int>(arguments[i]), 1, 256));
  if (sizes.empty()) sizes = {1, 16};
  for (const size_t millions : sizes) Bench(millions << 20).run();
}
