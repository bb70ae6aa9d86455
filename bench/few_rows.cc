// What a product of few rows reads a second, beside a sum over memory and beside the product of training
// programs: GPT-2 small's weights, which fit no cache together.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/rng.h"
#include "bench/numbers.h"
#include "dag/op_table.h"
#include "dag/stored_matrix.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/program.h"

namespace weft {
namespace {

using namespace dag;
using peer::View;

// On the wall, or with one thread of the processor, which others on the machine disturb less.
double now(bool one_thread) {
  timespec t;
  clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// y = op(x, ..) of the first input by turns in many places.
class Bench {
 public:
  Bench(peer::Backend& backend, const Graph& graph, ValueId turning, int64_t copies, bool rows_alone)
      : backend_(backend), graph_(graph) {
    peer::GroupSignature group = peer::group_signatures(graph)[0];
    group.rows_alone = rows_alone;
    kernel_ = std::move(*backend.make_kernel(graph, group));
    workspace_ = take(kernel_->workspace_bytes());
    for (const ValueId input : group.inputs) {
      const Bytes bytes = graph.spec(input).bytes();
      const bool turns = input == turning;
      const View view = take({bytes.value * (turns ? copies : 1)});
      for (int64_t i = 0; i < (turns ? copies : 1); ++i)
        fill(input, {view.memory, view.offset + i * bytes.value});
      if (turns) turning_ = inputs_.size(), step_ = bytes.value, copies_ = copies;
      inputs_.push_back(view);
    }
    for (const ValueId output : group.outputs) outputs_.push_back(take(graph.spec(output).bytes()));
  }

  // Runs over all of what turns. Its bytes a second so far, at best: others on the machine take from it.
  double rate(bool one_thread) {
    const double start = now(one_thread);
    for (int64_t i = 0; i < copies_; ++i) {
      std::vector<View> inputs = inputs_;
      inputs[turning_].offset += i * step_;
      const Status status = kernel_->run(inputs, outputs_, workspace_, {});
      if (!status) std::printf("%s\n", status.error().message.c_str());
    }
    best_ = std::max(best_, static_cast<double>(copies_ * step_) / (now(one_thread) - start));
    return best_;
  }

 private:
  View take(Bytes size) {
    memory_.push_back(std::move(*backend_.allocate(size)));
    return {memory_.back().get(), 0};
  }
  void fill(ValueId value, View view) {
    Tensor tensor(graph_.spec(value));
    Rng rng(1, value.index);
    if (tensor.dtype() == DType::U8) {
      for (uint8_t& byte : tensor.mutable_as<uint8_t>()) byte = static_cast<uint8_t>(rng.next_u32() >> 24);
      (void)backend_.upload(tensor, view, Layout::Plain);
      return;
    }
    for (float& x : tensor.mutable_as<float>())
      x = static_cast<float>(rng.next_u32() >> 8) / 16777216.0f - 0.5f;
    (void)backend_.upload(tensor, view, Layout::Plain);
  }

  peer::Backend& backend_;
  const Graph& graph_;
  std::unique_ptr<peer::Kernel> kernel_;
  std::vector<std::unique_ptr<peer::Memory>> memory_;
  std::vector<View> inputs_, outputs_;
  View workspace_;
  size_t turning_ = 0;
  int64_t step_ = 0, copies_ = 1;
  double best_ = 0;
};

Graph sum_graph(int64_t bytes) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {64, bytes / 256}});
  const Attributes last{{Attr::Axes, Ints{1}}, {Attr::KeepDims, int64_t{0}}};
  b.output("y", b.add(OpKind::ReduceSum, {x}, last), OutputRole::Prediction);
  return b.finish();
}

// x[a] w[weight] with w the second input.
Graph product_graph(const Shape& a, const Shape& weight, bool trans_b) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, a}), w = b.input("w", {DType::F32, weight});
  b.output("y", b.add(OpKind::MatMul, {x, w}, {{Attr::TransB, int64_t{trans_b}}}), OutputRole::Prediction);
  return b.finish();
}

// The same with a weight in four bits, in blocks of 32 along what is added up.
Graph stored_graph(const Shape& a, const Shape& weight, bool trans_b) {
  StoredMatrix matrix{.rows = weight[0], .columns = weight[1], .numbers = DType::U8, .bits = 4};
  (trans_b ? matrix.block_columns : matrix.block_rows) = 32;
  matrix.zero_of_all = 8;
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, a}), w = b.input("w", matrix.numbers_spec()),
                scale = b.input("scale", matrix.scale_spec());
  Attributes attributes = matrix.attributes();
  attributes.set(Attr::TransB, int64_t{trans_b});
  b.output("y", b.add(OpKind::StoredMatMul, {x, w, scale}, std::move(attributes)), OutputRole::Prediction);
  return b.finish();
}

struct Case {
  const char* name;
  Shape a, weight;  // a without its rows
  bool trans_b;
  int bits = 32;
};

const Case kCases[] = {{"768 x 2304", {768}, {768, 2304}, false},
                       {"768 x 768", {768}, {768, 768}, false},
                       {"768 x 3072", {768}, {768, 3072}, false},
                       {"3072 x 768", {3072}, {3072, 768}, false},
                       {"768 x 50257, tied", {768}, {50257, 768}, true},
                       {"768 x 50257", {768}, {768, 50257}, false},
                       {"768 x 3072 of 4 bits", {768}, {768, 3072}, false, 4},
                       {"768 x 3072 of 4 bits, tied", {768}, {3072, 768}, true, 4},
                       {"12 heads q k, 1024 keys", {12, 64}, {12, 1024, 64}, true},
                       {"12 heads p v, 1024 keys", {12, 1024}, {12, 1024, 64}, false}};

// `bytes` of weights by turns: several times what a cache holds.
void measure(const Case& c, int threads, int64_t bytes) {
  constexpr int kRounds = 7;  // the three by turns: the speed of a shared machine drifts
  const auto backend = std::move(*peer::make_cpu_backend({.threads = threads}));
  const Graph sum = sum_graph(bytes);
  Bench memory(*backend, sum, sum.inputs()[0], 1, false);
  std::printf("%-26s", c.name);
  for (const int64_t rows : {1, 2, 4, 8, 12, 16}) {
    Shape a = c.a;
    a.insert(a.end() - 1, rows);
    const Graph graph =
        c.bits == 32 ? product_graph(a, c.weight, c.trans_b) : stored_graph(a, c.weight, c.trans_b);
    const ValueId weight = graph.inputs()[1];
    const double floats = 32.0 / c.bits;  // how much a float32 of each number would be
    const int64_t copies = std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(bytes) / floats) / graph.spec(weight).bytes().value);
    Bench alone(*backend, graph, weight, copies, true), training(*backend, graph, weight, copies, false);
    double rates[3] = {};
    for (int round = 0; round < kRounds; ++round) {
      rates[0] = memory.rate(threads == 1);
      rates[1] = floats * alone.rate(threads == 1);
      rates[2] = floats * training.rate(threads == 1);
    }
    std::printf("  %2d: %5.1f (%4.2f; %5.1f)", static_cast<int>(rows), rates[1] / 1e9, rates[1] / rates[0],
                rates[2] / 1e9);
    std::fflush(stdout);
  }
  std::printf("  memory %.1f\n", memory.rate(threads == 1) / 1e9);
}

}  // namespace
}  // namespace weft

// weft_bench_few_rows [WORD [THREADS [MIB]]]: only shapes whose name holds WORD, on one to THREADS threads,
// over so much memory.
int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const int threads_max = argc > 2 ? weft::bench::number_of<int>(argv[2]) : 2;
  const int64_t bytes = int64_t{argc > 3 ? std::max(1, weft::bench::number_of<int>(argv[3])) : 256} << 20;
  std::printf(
      "rows: GB/s of weights as float32 (of the rate of a sum over memory; the kernel of training "
      "programs)\n");
  for (int threads = 1; threads <= threads_max; ++threads) {
    std::printf("%d threads\n", threads);
    for (const auto& c : weft::kCases)
      if (std::string(c.name).find(word) != std::string::npos) weft::measure(c, threads, bytes);
  }
}
