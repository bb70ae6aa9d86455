// What a product of few rows reads a second, beside a sum over memory and beside the product of training
// programs: GPT-2 small's weights, which fit no cache together.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/rng.h"
#include "dag/op_table.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/program.h"

namespace weft {
namespace {

using namespace dag;
using peer::View;

constexpr int64_t kWeightBytes = int64_t{256} << 20;  // of one shape, by turns: several times a cache

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
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

  // Bytes of what turns, a second: the best of a few times over all of it.
  double rate() {
    double best = 0;
    for (int round = 0; round < 4; ++round) {
      const double start = now();
      for (int64_t i = 0; i < copies_; ++i) {
        std::vector<View> inputs = inputs_;
        inputs[turning_].offset += i * step_;
        const Status status = kernel_->run(inputs, outputs_, workspace_, {});
        if (!status) std::printf("%s\n", status.error().message.c_str());
      }
      best = std::max(best, static_cast<double>(copies_ * step_) / (now() - start));
    }
    return best;
  }

 private:
  View take(Bytes size) {
    memory_.push_back(std::move(*backend_.allocate(size)));
    return {memory_.back().get(), 0};
  }
  void fill(ValueId value, View view) {
    Tensor tensor(graph_.spec(value));
    Rng rng(1, value.index);
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
};

double sum_rate(peer::Backend& backend) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, {64, kWeightBytes / 256}});
  b.output("y", b.add(OpKind::ReduceSum, {x}, {{Attr::Axes, Ints{1}}, {Attr::KeepDims, int64_t{0}}}),
           OutputRole::Prediction);
  const Graph graph = b.finish();
  return Bench(backend, graph, x, 1, false).rate();
}

double product_rate(peer::Backend& backend, const Shape& a, const Shape& weight, bool trans_b,
                    bool rows_alone) {
  GraphBuilder b(op_table());
  const ValueId x = b.input("x", {DType::F32, a}), w = b.input("w", {DType::F32, weight});
  b.output("y", b.add(OpKind::MatMul, {x, w}, {{Attr::TransB, int64_t{trans_b}}}), OutputRole::Prediction);
  const Graph graph = b.finish();
  const int64_t copies = std::max<int64_t>(1, kWeightBytes / graph.spec(w).bytes().value);
  return Bench(backend, graph, w, copies, rows_alone).rate();
}

struct Case {
  const char* name;
  Shape a, weight;  // a without its rows
  bool trans_b;
};

const Case kCases[] = {{"768 x 2304", {768}, {768, 2304}, false},
                       {"768 x 768", {768}, {768, 768}, false},
                       {"768 x 3072", {768}, {768, 3072}, false},
                       {"3072 x 768", {3072}, {3072, 768}, false},
                       {"768 x 50257, tied", {768}, {50257, 768}, true},
                       {"768 x 50257", {768}, {768, 50257}, false},
                       {"12 heads q k, 1024 keys", {12, 64}, {12, 1024, 64}, true},
                       {"12 heads p v, 1024 keys", {12, 1024}, {12, 1024, 64}, false}};

void measure(int threads, const std::string& word) {
  const auto backend = std::move(*peer::make_cpu_backend({.threads = threads}));
  const double memory = sum_rate(*backend);
  std::printf("%d threads: a sum over memory reads %.1f GB/s\n", threads, memory / 1e9);
  for (const Case& c : kCases) {
    if (std::string(c.name).find(word) == std::string::npos) continue;
    std::printf("%-24s", c.name);
    for (const int64_t rows : {1, 2, 4, 8, 12, 16}) {
      Shape a = c.a;
      a.insert(a.end() - 1, rows);
      const double alone = product_rate(*backend, a, c.weight, c.trans_b, true),
                   training = product_rate(*backend, a, c.weight, c.trans_b, false);
      std::printf("  %2d: %5.1f (%4.2f; %5.1f)", static_cast<int>(rows), alone / 1e9, alone / memory,
                  training / 1e9);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weft

// weft_bench_few_rows [WORD [THREADS]]: only shapes whose name holds WORD, on one to THREADS threads.
int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const int threads_max = argc > 2 ? std::atoi(argv[2]) : 2;
  std::printf("rows: GB/s of weights (of the memory's rate; the kernel of training programs)\n");
  for (int threads = 1; threads <= threads_max; ++threads) weft::measure(threads, word);
}
