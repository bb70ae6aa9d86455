// What subnormal numbers cost: each kernel on ordinary numbers and on such as a saturated softmax and the
// slots of dead parameters hold, one thread. A ratio near 1 is what is wanted; without flushing, some are
// near 100.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>

#include "base/rng.h"
#include "dag/op_table.h"
#include "dag/state.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/program.h"

namespace weft {
namespace {

using namespace dag;
using peer::View;

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Numbers of magnitude `scale`, each different.
Tensor numbers(const TensorSpec& spec, float scale, uint64_t seed) {
  Tensor tensor(spec);
  Rng rng(seed, 1);
  for (float& x : tensor.mutable_as<float>())
    x = scale * (0.5f + static_cast<float>(rng.next_u32() >> 8) / 16777216.0f);
  return tensor;
}

class Bench {
 public:
  Bench() : backend_(std::move(*peer::make_cpu_backend({.threads = 1}))) {}

  void heading() const {
    std::printf("%s\n%-40s %12s %12s %8s\n", backend_->numerics_fingerprint().c_str(), "", "ordinary",
                "subnormal", "ratio");
  }

  // The op on operands of magnitude 1, and with operand `which` of magnitude `scale`.
  void op(const char* name, OpKind kind, const std::vector<Shape>& shapes, size_t which, float scale,
          const Attributes& attributes = {}) {
    GraphBuilder b(op_table());
    std::vector<ValueId> operands;
    operands.reserve(shapes.size());
    for (const Shape& shape : shapes)
      operands.push_back(b.input("x" + std::to_string(operands.size()), {DType::F32, shape}));
    const auto results = b.add_all(kind, operands, attributes);
    for (const ValueId v : results) b.output("y" + std::to_string(v.index), v, OutputRole::Prediction);
    const Graph graph = b.finish();
    const peer::GroupSignature group = peer::group_signatures(graph)[0];
    const auto kernel = std::move(*backend_->make_kernel(graph, group));
    const View workspace = take(kernel->workspace_bytes());
    std::vector<View> out;
    out.reserve(group.outputs.size());
    for (const ValueId v : group.outputs) out.push_back(take(graph.spec(v).bytes()));
    const auto seconds = [&](float magnitude) {
      std::vector<View> in;
      in.reserve(shapes.size());
      for (size_t i = 0; i < shapes.size(); ++i)
        in.push_back(uploaded(numbers({DType::F32, shapes[i]}, i == which ? magnitude : 1.0f, i)));
      return best_of([&] { (void)kernel->run(in, out, workspace, {.seed = 1, .step = 1}); });
    };
    print(name, seconds(1), seconds(scale));
    memory_.clear();
  }

  void update(const char* name, const OptimizerSpec& optimizer, float gradient, float slot) {
    const TensorSpec spec{DType::F32, {1 << 20}};
    const auto seconds = [&](float g, float s) {
      peer::ParameterUpdate update{spec, uploaded(numbers(spec, 1, 1)), uploaded(numbers(spec, g, 2)), {}};
      std::vector<Tensor> fresh;
      for (size_t i = 0; i < dag::optimizer_slots(optimizer).size(); ++i) {
        fresh.push_back(numbers(spec, s, 3 + i));
        update.slots.push_back(uploaded(fresh.back()));
      }
      double best = 1e9;
      for (int i = 0; i < 7; ++i) {
        for (size_t k = 0; k < fresh.size(); ++k)
          (void)backend_->upload(fresh[k], update.slots[k], Layout::Plain);
        best =
            std::min(best, timed([&] {
                       (void)backend_->update(optimizer, {.step = 1000, .learning_rate = 1e-3}, {&update, 1});
                     }));
      }
      return best;
    };
    print(name, seconds(1, 1), seconds(gradient, slot));
    memory_.clear();
  }

 private:
  View take(Bytes size) {
    memory_.push_back(std::move(*backend_->allocate(size)));
    return {memory_.back().get(), 0};
  }
  View uploaded(const Tensor& tensor) {
    const View view = take(tensor.spec().bytes());
    (void)backend_->upload(tensor, view, Layout::Plain);
    return view;
  }
  static double timed(const std::function<void()>& f) {
    const double start = thread_seconds();
    f();
    return thread_seconds() - start;
  }
  static double best_of(const std::function<void()>& f) {
    double best = 1e9;
    for (int i = 0; i < 7; ++i) best = std::min(best, timed(f));
    return best;
  }
  static void print(const char* name, double ordinary, double subnormal) {
    std::printf("%-40s %9.3f ms %9.3f ms %8.2f\n", name, ordinary * 1e3, subnormal * 1e3,
                subnormal / ordinary);
  }

  std::unique_ptr<peer::Backend> backend_;
  std::vector<std::unique_ptr<peer::Memory>> memory_;
};

}  // namespace
}  // namespace weft

int main() {
  using namespace weft;
  Bench bench;
  bench.heading();
  const Attributes rows{{Attr::Axis, int64_t{1}}};
  bench.op("matmul, probabilities of 1e-40", OpKind::MatMul, {{384, 384}, {384, 384}}, 0, 1e-40f);
  bench.op("matmul, gradients of 1e-42", OpKind::MatMul, {{256, 1024}, {256, 1024}}, 1, 1e-42f,
           {{Attr::TransA, int64_t{1}}});
  bench.op("softmax grad, probabilities of 1e-40", OpKind::SoftmaxGrad, {{2048, 512}, {2048, 512}}, 1, 1e-40f,
           rows);
  bench.op("softmax, logits 90 apart", OpKind::Softmax, {{2048, 512}}, 0, 90, rows);
  bench.op("multiply to 1e-40", OpKind::Mul, {{1024, 1024}, {1024, 1024}}, 0, 1e-40f);
  bench.op("add 1e-41", OpKind::Add, {{1024, 1024}, {1024, 1024}}, 0, 1e-41f);
  bench.op("gelu of 1e-40", OpKind::Gelu, {{1024, 1024}}, 0, 1e-40f, {{Attr::Approximate, int64_t{1}}});
  const Attributes conv{{Attr::Strides, Ints{1, 1}},
                        {Attr::Pads, Ints{1, 1, 1, 1}},
                        {Attr::Dilations, Ints{1, 1}},
                        {Attr::Groups, int64_t{1}}};
  bench.op("convolution, activations of 1e-40", OpKind::Conv, {{4, 64, 28, 28}, {64, 64, 3, 3}}, 0, 1e-40f,
           conv);
  OptimizerSpec sgd, adam;
  sgd.momentum = 0.9;
  adam.type = OptimizerType::Adam;
  bench.update("sgd, momentum of 1e-42", sgd, 0, 1e-42f);
  bench.update("adam, slots of 1e-42", adam, 0, 1e-42f);
  bench.update("adam, gradients of 1e-25", adam, 1e-25f, 1e-40f);
}
