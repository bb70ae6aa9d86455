// Speed of the cpu backend's kernels on the shapes of ResNet-18 (batch 8) and GPT-2 small (2 x 128 tokens),
// one and two threads side by side. Prints the median and the best of several runs, the latter as GFLOP/s
// where an op multiplies, else GB/s of operands and results.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/rng.h"
#include "bench/numbers.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/program.h"

namespace weft {
namespace {

using namespace dag;
using peer::View;

struct Case {
  std::string name;
  Graph graph;
};

ValueId input(GraphBuilder& b, Shape shape, DType dtype = DType::F32) {
  return b.input("x" + std::to_string(b.graph().inputs().size()), {dtype, std::move(shape)});
}

Case one_op(std::string name, OpKind kind, const std::vector<Shape>& shapes, Attributes attributes = {}) {
  GraphBuilder b(op_table());
  std::vector<ValueId> operands;
  const bool labels = kind == OpKind::CrossEntropy || kind == OpKind::CrossEntropyGrad;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const bool indices = (labels && shapes[i].size() == 1 && i == (kind == OpKind::CrossEntropy ? 1u : 2u));
    operands.push_back(input(b, shapes[i], indices ? DType::I64 : DType::F32));
  }
  const auto outputs = b.add_all(kind, operands, std::move(attributes));
  for (const ValueId v : outputs) b.output("y" + std::to_string(v.index), v, OutputRole::Prediction);
  return {std::move(name), b.finish()};
}

Attributes window(int64_t stride, int64_t pad) {
  return {{Attr::Strides, Ints{stride, stride}},
          {Attr::Pads, Ints{pad, pad, pad, pad}},
          {Attr::Dilations, Ints{1, 1}},
          {Attr::Groups, int64_t{1}}};
}

std::vector<Case> all_cases(Layout layout) {
  std::vector<Case> cases;
  const auto blocked = [&](Case c) {
    // Values of the image shapes lie blocked, as the lowering pass would have them.
    GraphCopy copy(c.graph, op_table());
    for (uint32_t i = 0; i < c.graph.ops().size(); ++i) copy.copy(OpId{i});
    copy.copy_outputs();
    for (uint32_t v = 0; v < c.graph.values().size(); ++v) {
      const Value& value = c.graph.values()[v];
      const bool image = value.spec.rank() == 4 && value.spec.shape[1] % 16 == 0 &&
                         value.spec.shape[0] == 8 && value.spec.shape[2] > 1;
      if (image) copy.builder().set_layout(copy.mapped(ValueId{v}), layout);
    }
    c.graph = copy.finish();
    cases.push_back(std::move(c));
  };
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}, {50257, 768}}) {
    const std::string size = " 256x" + std::to_string(n) + "x" + std::to_string(k);
    cases.push_back(one_op("matmul" + size, OpKind::MatMul, {{256, k}, {k, n}}));
    cases.push_back(
        one_op("matmul dx" + size, OpKind::MatMul, {{256, n}, {k, n}}, {{Attr::TransB, int64_t{1}}}));
    cases.push_back(
        one_op("matmul dw" + size, OpKind::MatMul, {{256, k}, {256, n}}, {{Attr::TransA, int64_t{1}}}));
  }
  cases.push_back(one_op("matmul heads q k", OpKind::MatMul, {{2, 12, 128, 64}, {2, 12, 128, 64}},
                         {{Attr::TransB, int64_t{1}}}));
  cases.push_back(one_op("matmul heads p v", OpKind::MatMul, {{2, 12, 128, 128}, {2, 12, 128, 64}}));
  struct Layer {
    int64_t c, m, s, kernel, stride;
  };
  for (const Layer& l :
       {Layer{3, 64, 224, 7, 2}, Layer{64, 64, 56, 3, 1}, Layer{64, 128, 56, 3, 2}, Layer{128, 128, 28, 3, 1},
        Layer{256, 256, 14, 3, 1}, Layer{512, 512, 7, 3, 1}, Layer{256, 512, 14, 1, 2}}) {
    const int64_t pad = l.kernel / 2, out = (l.s + 2 * pad - l.kernel) / l.stride + 1;
    const std::string size = " 8x" + std::to_string(l.c) + "x" + std::to_string(l.m) + " " +
                             std::to_string(l.s) + "/" + std::to_string(l.kernel) + "s" +
                             std::to_string(l.stride);
    Attributes a = window(l.stride, pad);
    blocked(one_op("conv" + size, OpKind::Conv, {{8, l.c, l.s, l.s}, {l.m, l.c, l.kernel, l.kernel}}, a));
    a.set(Attr::Shape, Shape{8, l.c, l.s, l.s});
    if (l.c > 3)
      blocked(one_op("conv dx" + size, OpKind::ConvGradInput,
                     {{8, l.m, out, out}, {l.m, l.c, l.kernel, l.kernel}}, a));
    a.set(Attr::Shape, Shape{l.m, l.c, l.kernel, l.kernel});
    blocked(one_op("conv dw" + size, OpKind::ConvGradWeight, {{8, l.c, l.s, l.s}, {8, l.m, out, out}}, a));
  }
  const Attributes epsilon{{Attr::Epsilon, 1e-5}};
  const Shape image{8, 64, 56, 56};
  blocked(one_op("batch norm", OpKind::BatchNorm, {image, {64}, {64}}, epsilon));
  blocked(one_op("batch norm grad", OpKind::BatchNormGrad, {image, image, {64}, {64}, {64}}, epsilon));
  Attributes pool{{Attr::Kernel, Ints{3, 3}}, {Attr::Strides, Ints{2, 2}}, {Attr::Pads, Ints{1, 1, 1, 1}}};
  blocked(one_op("max pool", OpKind::MaxPool, {{8, 64, 112, 112}}, pool));
  blocked(one_op("mean over space", OpKind::ReduceMean, {{8, 512, 7, 7}},
                 {{Attr::Axes, Ints{2, 3}}, {Attr::KeepDims, int64_t{1}}}));
  const Attributes last{{Attr::Axis, int64_t{1}}, {Attr::Epsilon, 1e-5}};
  cases.push_back(one_op("layer norm", OpKind::LayerNorm, {{256, 768}, {768}, {768}}, last));
  cases.push_back(one_op("layer norm grad", OpKind::LayerNormGrad,
                         {{256, 768}, {256, 768}, {768}, {256, 1}, {256, 1}}, last));
  const int64_t rows = int64_t{24} * 128;  // of 12 heads of two samples
  cases.push_back(one_op("softmax", OpKind::Softmax, {{rows, 128}}, {{Attr::Axis, int64_t{1}}}));
  cases.push_back(
      one_op("softmax grad", OpKind::SoftmaxGrad, {{rows, 128}, {rows, 128}}, {{Attr::Axis, int64_t{1}}}));
  const Attributes loss{{Attr::Axis, int64_t{1}}, {Attr::Reduction, std::string("mean")}};
  cases.push_back(one_op("cross entropy", OpKind::CrossEntropy, {{256, 50257}, {256}}, loss));
  cases.push_back(
      one_op("cross entropy grad", OpKind::CrossEntropyGrad, {{}, {256, 50257}, {256}, {256}}, loss));
  cases.push_back(
      one_op("transpose heads", OpKind::Transpose, {{2, 128, 12, 64}}, {{Attr::Perm, Ints{0, 2, 1, 3}}}));
  cases.push_back(one_op("transpose matrix", OpKind::Transpose, {{3072, 768}}, {{Attr::Perm, Ints{1, 0}}}));
  cases.push_back(one_op("bias gradient", OpKind::ReduceSum, {{256, 3072}},
                         {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{0}}}));
  cases.push_back(one_op("add large", OpKind::Add, {{16, 1 << 20}, {16, 1 << 20}}));
  cases.push_back(one_op("gelu tanh", OpKind::Gelu, {{256, 3072}}, {{Attr::Approximate, int64_t{1}}}));
  cases.push_back(one_op("gelu erf", OpKind::Gelu, {{256, 3072}}, {{Attr::Approximate, int64_t{0}}}));
  cases.push_back(
      one_op("dropout", OpKind::Dropout, {{256, 3072}}, {{Attr::Ratio, 0.1}, {Attr::Key, int64_t{1}}}));
  {
    GraphBuilder b(op_table());
    const ValueId x = input(b, {4096, 1024}), bias = input(b, {1024}), r = input(b, {4096, 1024});
    const ValueId y =
        b.add(OpKind::Add,
              {b.add(OpKind::Gelu, {b.add(OpKind::Add, {x, bias})}, {{Attr::Approximate, int64_t{1}}}), r});
    for (const Op& op : b.graph().ops())
      if (!op.inputs.empty()) b.set_group(b.graph().value(op.outputs[0]).producer, GroupId{0});
    b.output("y", y, OutputRole::Prediction);
    cases.push_back({"fused bias gelu add", b.finish()});
  }
  return cases;
}

struct Runner {
  std::unique_ptr<peer::Backend> backend;
  std::vector<std::unique_ptr<peer::Memory>> memory;
  std::vector<View> in, out;
  std::unique_ptr<peer::Kernel> kernel;
  std::unique_ptr<peer::Memory> workspace;

  Runner(const Graph& graph, int threads) {
    backend = std::move(*peer::make_cpu_backend({.threads = threads}));
    const peer::GroupSignature group = peer::group_signatures(graph)[0];
    kernel = std::move(*backend->make_kernel(graph, group));
    workspace = std::move(*backend->allocate(kernel->workspace_bytes()));
    Rng rng(1, 1);
    for (const ValueId v : group.inputs) {
      Tensor tensor(graph.spec(v));
      if (tensor.dtype() == DType::F32)
        for (float& x : tensor.mutable_as<float>()) x = static_cast<float>(rng.next_u32() >> 8) / 16777216.0f;
      in.push_back(take(graph.value(v)));
      (void)backend->upload(tensor, in.back(), graph.value(v).layout);
    }
    for (const ValueId v : group.outputs) out.push_back(take(graph.value(v)));
  }
  View take(const Value& value) {
    memory.push_back(std::move(*backend->allocate(value.spec.bytes())));
    return {memory.back().get(), 0};
  }
  // Of the clock on the wall, or with one thread of the processor, which others on the machine disturb less.
  double seconds(bool one_thread) {
    const auto now = [&] {
      timespec t;
      clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    const double start = now();
    const Status status = kernel->run(in, out, {workspace.get(), 0}, {.seed = 1, .step = 1});
    if (!status) std::printf("%s\n", status.error().message.c_str());
    return now() - start;
  }
};

void measure(const Case& c, int threads_max) {
  const Op& op = c.graph.ops().back();
  const Family family = op_table().row(op.kind).family;
  const bool multiplies = family == Family::MatMul || family == Family::Convolution;
  double amount = 0;
  if (multiplies) {
    amount = static_cast<double>(op_flops(c.graph, op).value);
  } else {
    const peer::GroupSignature group = peer::group_signatures(c.graph)[0];
    for (const ValueId v : group.inputs) amount += static_cast<double>(c.graph.spec(v).bytes().value);
    for (const ValueId v : group.outputs) amount += static_cast<double>(c.graph.spec(v).bytes().value);
  }
  std::printf("%-36s", c.name.c_str());
  for (int threads = 1; threads <= threads_max; ++threads) {
    Runner runner(c.graph, threads);
    runner.seconds(threads == 1);
    std::vector<double> times;
    double total = 0;
    while (times.size() < 5 || (total < 0.15 && times.size() < 200)) {
      times.push_back(runner.seconds(threads == 1));
      total += times.back();
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], best = times[0];
    std::printf(" %d: %9.3f ms (best %9.3f) %7.1f %s", threads, median * 1e3, best * 1e3, amount / best / 1e9,
                multiplies ? "GFLOP/s" : "GB/s");
    if (threads == threads_max) std::printf("  %s", std::string(runner.kernel->implementation()).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft

// weft_bench_kernels [WORD [THREADS]]: only cases whose name holds WORD.
int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? weft::bench::number_of<int>(argv[2]) : 2;
  const auto backend = weft::peer::make_cpu_backend({.threads = 1, .pin = false});
  std::printf("%s\n", (*backend)->numerics_fingerprint().c_str());
  for (const auto& c : weft::all_cases((*backend)->traits().convolution_layout))
    if (c.name.find(word) != std::string::npos) weft::measure(c, threads);
}
