// Reductions, softmax and normalisation of shapes for which each form of their kernels is chosen, and of
// values that are no numbers, against the reference; and in place where they offer it.
#include <cmath>
#include <limits>

#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/large_cases.h"
#include "tests/cuda/backend_on_host.h"

namespace weft::peer {
namespace {

using Operands = std::vector<std::optional<Tensor>>;
using test::cuda_on_host;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Uniform about `centre`.
Tensor around(float centre, Shape shape, uint64_t seed, float radius = 1) {
  Tensor made = random_tensor(std::move(shape), seed);
  for (float& v : made.mutable_as<float>()) v = v * radius + centre;
  return made;
}

// Integers within `most` of zero, many of them equal where it is small.
Tensor integers(Shape shape, DType dtype, int64_t most) {
  const dag::TensorSpec spec{dtype, std::move(shape)};
  Rng rng(11, 0);
  std::vector<int64_t> values(static_cast<size_t>(spec.element_count()));
  for (int64_t& v : values)
    v = static_cast<int64_t>(rng.uniform() * static_cast<double>(2 * most + 1)) - most;
  return dag::from_int64s(spec, values);
}

// Rows with NaN, infinities, and -inf alone among numbers.
Tensor with_no_numbers(int64_t rows, int64_t width) {
  Tensor made = random_tensor({rows, width}, 3);
  const auto row = [&, values = made.mutable_as<float>()](int64_t r) {
    return values.subspan(static_cast<size_t>((r % rows) * width), static_cast<size_t>(width));
  };
  for (float& v : row(0)) v = -kInfinity;
  for (size_t i = 0; i < static_cast<size_t>(width); i += 3) row(1)[i] = -kInfinity;
  row(2)[static_cast<size_t>(width) - 1] = kInfinity;
  row(3)[static_cast<size_t>(width) / 2] = kNan;
  row(3)[static_cast<size_t>(width) / 3] = kNan;
  return made;
}

// Kernels' first outputs over their first inputs, where a kernel may.
std::vector<Tensor> run_in_place(Backend& backend, const OpCase& op_case) {
  dag::OpCaseGraph made = dag::build_op_case(op_case);
  const dag::Graph& graph = made.builder.graph();
  const GroupSignature group = group_signatures(graph).at(0);
  auto kernel = *backend.make_kernel(graph, group);
  std::vector<std::unique_ptr<Memory>> memory;
  const auto take = [&](int64_t bytes) -> View {
    memory.push_back(*backend.allocate({bytes}));
    return {memory.back().get(), 0};
  };
  std::vector<View> in, out;
  std::map<dag::ValueId, View> given;
  for (size_t i = 0; i < made.inputs.size(); ++i) {
    if (!made.inputs[i].valid()) continue;
    const View view = given[made.inputs[i]] = take(op_case.inputs[i]->spec().bytes().value);
    EXPECT_TRUE(backend.upload(*op_case.inputs[i], view, dag::Layout::Plain).has_value());
  }
  for (const dag::ValueId value : group.inputs) in.push_back(given.at(value));
  for (size_t i = 0; i < group.outputs.size(); ++i) {
    const int input = kernel->in_place_input(i);
    out.push_back(input >= 0 ? in[static_cast<size_t>(input)]
                             : take(graph.value(group.outputs[i]).spec.bytes().value));
  }
  EXPECT_TRUE(kernel->run(in, out, take(kernel->workspace_bytes().value), kContext).has_value());
  std::vector<Tensor> results;
  for (size_t i = 0; i < out.size(); ++i)
    results.push_back(*backend.download(out[i], graph.value(group.outputs[i]).spec, dag::Layout::Plain));
  return results;
}

class CudaLines : public testing::Test {
 protected:
  void check(const std::string& name, OpKind kind, Operands inputs, Attributes attributes,
             double tolerance = 2e-5) {
    SCOPED_TRACE(std::string(dag::to_string(kind)) + " " + name);
    const OpCase op_case{.name = name,
                         .kind = kind,
                         .attributes = std::move(attributes),
                         .inputs = std::move(inputs),
                         .tolerance = tolerance,
                         .no_gradient = {}};
    std::string implementation;
    const std::vector<Tensor> actual = run_case(*backend_, op_case, &implementation),
                              expected = run_case(*reference_, op_case),
                              in_place = run_in_place(*backend_, op_case);
    EXPECT_NE(implementation, "reference");
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_LE(relative_error(actual[i], expected[i]), tolerance)
          << "output " << i << " by " << implementation;
      EXPECT_EQ(relative_error(in_place[i], actual[i]), 0) << "output " << i << " in place";
    }
  }

  const std::unique_ptr<Backend> backend_ = cuda_on_host({.seed = 5}), reference_ = make_reference_backend();
};

Attributes over(Ints axes) { return {{Attr::Axes, std::move(axes)}, {Attr::KeepDims, int64_t{0}}}; }
Attributes along(int64_t axis) { return {{Attr::Axis, axis}}; }

TEST_F(CudaLines, ReductionsOfEveryForm) {
  for (const OpKind kind : {OpKind::ReduceSum, OpKind::ReduceMean, OpKind::ReduceMax, OpKind::ReduceMin}) {
    check("of a long row", kind, {around(0.1f, {70'001}, 1)}, over({0}));
    check("of short rows", kind, {around(0.1f, {300, 7}, 1)}, over({1}));
    check("of rows", kind, {around(0.1f, {3, 700}, 1)}, over({1}));
    check("of columns", kind, {around(0.1f, {1001, 33}, 1)}, over({0}));
    check("of few columns", kind, {around(0.1f, {9001, 3}, 1)}, over({0}));
    check("in the middle", kind, {around(0.1f, {5, 30, 70}, 1)}, over({1}));
    check("of channels", kind, {around(0.1f, {6, 11, 30, 5}, 1)}, over({0, 2, 3}));
    check("of dims of one", kind, {around(0.1f, {1, 11, 1}, 1)}, over({0, 2}));
    check("of no dims", kind, {around(0.1f, {4, 11}, 1)}, over({}));
    check("of what is no number", kind, {with_no_numbers(6, 900)}, over({1}));
    check("of what is no number, by column", kind, {with_no_numbers(70, 90)}, over({0}));
  }
  check("rows", OpKind::ReduceProd, {around(1, {3, 300}, 1, 0.01f)}, over({1}));
  for (const OpKind kind : {OpKind::ReduceSum, OpKind::ReduceProd, OpKind::ReduceMax, OpKind::ReduceMin})
    for (const DType dtype : {DType::I32, DType::I64})
      check("of integers", kind, {integers({3, 700, 5}, dtype, 1'000'000'000)}, over({1}), 0);
}

TEST_F(CudaLines, PlacesOfExtremes) {
  for (const OpKind kind : {OpKind::ArgMax, OpKind::ArgMin})
    for (const int64_t axis : {0, 1}) {
      const Attributes attributes{{Attr::Axis, axis}, {Attr::KeepDims, int64_t{0}}};
      check("of what is no number", kind, {with_no_numbers(5, 900)}, attributes, 0);
      check("of rows", kind, {random_tensor({70, 33}, 1)}, attributes, 0);
      check("in the middle", kind, {random_tensor({4, 333, 9}, 1)}, attributes, 0);
      check("of equals", kind, {integers({400, 7}, DType::I32, 3)}, attributes, 0);
    }
}

TEST_F(CudaLines, RunningSums) {
  for (const int64_t exclusive : {0, 1})
    for (const int64_t reverse : {0, 1}) {
      const Attributes attributes{
          {Attr::Axis, int64_t{1}}, {Attr::Exclusive, exclusive}, {Attr::Reverse, reverse}};
      check("of long lines", OpKind::CumSum, {random_tensor({3, 700}, 1)}, attributes);
      check("by few others", OpKind::CumSum, {random_tensor({3, 300, 5}, 1)}, attributes);
      check("by others", OpKind::CumSum, {random_tensor({3, 30, 50}, 1)}, attributes);
      check("of what is no number", OpKind::CumSum, {with_no_numbers(5, 400)}, attributes);
      check("of integers", OpKind::CumSum, {integers({2, 700}, DType::I32, 2'000'000'000)}, attributes, 0);
    }
}

TEST_F(CudaLines, TheFirstOfLines) {
  for (const int64_t largest : {0, 1}) {
    const auto first = [&](int64_t axis, int64_t count) {
      return Attributes{{Attr::Axis, axis}, {Attr::Count, count}, {Attr::Largest, largest}};
    };
    check("by rank, all", OpKind::TopK, {random_tensor({2, 200}, 1)}, first(1, 200), 0);
    check("by rank, equals", OpKind::TopK, {integers({3, 200}, DType::I64, 20)}, first(1, 200), 0);
    check("by rank, columns", OpKind::TopK, {with_no_numbers(9, 30)}, first(0, 4), 0);
    check("by rounds", OpKind::TopK, {with_no_numbers(5, 1500)}, first(1, 20), 0);
    check("by rounds, equals", OpKind::TopK, {integers({2, 1100, 2}, DType::I32, 20)}, first(1, 60), 0);
  }
}

TEST_F(CudaLines, SoftmaxOfEveryForm) {
  for (const OpKind kind : {OpKind::Softmax, OpKind::LogSoftmax}) {
    for (const int64_t width : {1, 10, 33, 255, 257, 1000, 2049, 5000})
      check("width " + std::to_string(width), kind, {around(3, {3, width}, 1, 5)}, along(1));
    check("many rows", kind, {random_tensor({2048, 257}, 1)}, along(1));
    check("columns", kind, {random_tensor({3, 21, 100}, 1)}, along(1));
    check("long columns", kind, {random_tensor({2, 1000, 7}, 1)}, along(1));
    for (const int64_t width : {7, 100, 700, 3000, 5000})
      check("no numbers", kind, {with_no_numbers(5, width)}, along(1));
    check("no numbers, columns", kind, {with_no_numbers(90, 20)}, along(0));
  }
  for (const OpKind kind : {OpKind::SoftmaxGrad, OpKind::LogSoftmaxGrad}) {
    const auto grad = [&](const std::string& name, Shape shape) {
      check(name, kind, {random_tensor(shape, 1), around(-0.5f, shape, 2, 0.5f)}, along(1));
    };
    for (const int64_t width : {1, 10, 33, 255, 257, 1000, 2049, 5000})
      grad("width " + std::to_string(width), {3, width});
    grad("many rows", {2048, 257});
    grad("columns", {3, 21, 100});
    grad("long columns", {2, 1000, 7});
  }
}

TEST_F(CudaLines, CrossEntropyOfEveryForm) {
  struct Case {
    Shape logits;
    int64_t axis;
  };
  for (const auto& [shape, axis] : {Case{{5000, 5}, 1}, {{50, 300}, 1}, {{4, 21, 70}, 1}, {{40, 9}, 0}})
    for (const char* reduction : {"none", "mean", "sum"})
      for (const bool one_is_no_class : {false, true}) {
        const int64_t classes = shape[static_cast<size_t>(axis)];
        Shape label_shape = shape;
        label_shape.erase(label_shape.begin() + axis);
        Tensor labels = integers(label_shape, DType::I64, classes);
        for (int64_t& label : labels.mutable_as<int64_t>())  // a class, or what is ignored
          label = label < 0 ? -100 : std::min(label, classes - 1);
        if (one_is_no_class) labels.mutable_as<int64_t>()[1] = classes;
        const Attributes attributes{{Attr::Axis, axis},
                                    {Attr::Reduction, std::string(reduction)},
                                    {Attr::IgnoreIndex, int64_t{-100}}};
        const Tensor logits = around(0, shape, 5, 4), weight = around(1.5f, {classes}, 3);
        check(reduction, OpKind::CrossEntropy, {logits, labels, weight}, attributes);
        const Shape loss = std::string_view(reduction) == "none" ? label_shape : Shape{};
        check(reduction, OpKind::CrossEntropyGrad,
              {random_tensor(loss, 6), logits, labels, around(4, label_shape, 8), weight}, attributes);
      }
  const Tensor labels = dag::from_int64s({DType::I32, {4}}, std::vector<int64_t>{3, 0, 1, 2});
  check("no numbers", OpKind::CrossEntropy, {with_no_numbers(4, 300), labels},
        {{Attr::Axis, int64_t{1}}, {Attr::Reduction, std::string("none")}});
}

TEST_F(CudaLines, BatchesOfEveryForm) {
  const Attributes norm{{Attr::Epsilon, 1e-5}};
  for (const Shape& s : {Shape{64, 40},
                         {300, 3},
                         {7, 5, 3},
                         {1, 70, 31},
                         {1, 3, 9001},
                         {2, 300, 7, 7},
                         {4, 3, 32},
                         {2, 2, 64, 64},
                         {3, 2, 8, 4}}) {
    const Shape c{s[1]};
    const std::string name = dag::to_string(s);
    const Tensor scale = random_tensor(c, 2), bias = random_tensor(c, 3), variance = around(1.5f, c, 5);
    check(name, OpKind::BatchNorm, {random_tensor(s, 1), scale, bias}, norm);
    check(name + " off centre", OpKind::BatchNorm, {around(30, s, 1), scale, bias}, norm);
    check(name, OpKind::BatchNormGrad, {random_tensor(s, 4), random_tensor(s, 6), scale, bias, variance},
          norm);
    check(name, OpKind::BatchNormInference, {random_tensor(s, 4), scale, bias, random_tensor(c, 7), variance},
          norm);
  }
}

TEST_F(CudaLines, LayersOfEveryForm) {
  struct Case {
    int64_t rows, width;
  };
  for (const auto& [rows, width] :
       {Case{5, 1}, {300, 3}, {30, 33}, {7, 257}, {30, 768}, {3, 1600}, {2, 3000}, {20, 4097}})
    for (const bool with_scale : {false, true}) {
      const Shape s{rows, width};
      const std::string name = dag::to_string(s);
      Operands parameters(2);
      if (with_scale) parameters = {random_tensor({width}, 3), random_tensor({width}, 4)};
      check(name, OpKind::LayerNorm, {around(5, s, 1), parameters[0], parameters[1]},
            {{Attr::Axis, int64_t{1}}, {Attr::Epsilon, 1e-5}}, 4e-5);
      check(name, OpKind::LayerNormGrad,
            {random_tensor(s, 1), random_tensor(s, 2), parameters[0], random_tensor({rows, 1}, 5),
             around(1.5f, {rows, 1}, 6)},
            along(1));
    }
  check("many rows", OpKind::LayerNorm, {around(5, {2048, 257}, 1), random_tensor({257}, 3), std::nullopt},
        {{Attr::Axis, int64_t{1}}, {Attr::Epsilon, 1e-5}}, 4e-5);
}

}  // namespace
}  // namespace weft::peer
