// Graphs of elementwise groups, and their kernels on the shim.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "peer/backend/cuda/fused_source.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/run_graph.h"
#include "tests/cuda/backend_on_host.h"

namespace weft::peer {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::Graph;
using dag::GraphBuilder;
using dag::OpKind;
using dag::OutputRole;
using dag::Shape;
using dag::Tensor;
using dag::ValueId;

inline constexpr StepContext kContext{
    .seed = 0x1234567890u, .step = 3, .sample_position = 5, .microbatch_size = 2};

struct Sample {
  Graph graph;
  std::vector<Tensor> inputs;
};

// Appends ops, in one group or each alone.
class SampleBuilder {
 public:
  explicit SampleBuilder(bool in_one_group) : builder_(dag::op_table()), in_one_group_(in_one_group) {}

  ValueId input(Tensor tensor) {
    inputs_.push_back(tensor);
    return builder_.input("x" + std::to_string(inputs_.size()), tensor.spec());
  }
  ValueId add(OpKind kind, std::vector<ValueId> operands, Attributes attributes = {}) {
    const ValueId made = builder_.add(kind, std::move(operands), std::move(attributes));
    if (in_one_group_) builder_.set_group(builder_.graph().value(made).producer, dag::GroupId{0});
    return made;
  }
  ValueId cast(ValueId value, DType to) {
    return add(OpKind::Cast, {value}, {{Attr::DType, static_cast<int64_t>(to)}});
  }
  void output(ValueId value) {
    builder_.output("y" + std::to_string(outputs_++), value, OutputRole::Prediction);
  }
  GraphBuilder& builder() { return builder_; }
  Sample finish() { return {builder_.finish(), std::move(inputs_)}; }

 private:
  GraphBuilder builder_;
  bool in_one_group_;
  std::vector<Tensor> inputs_;
  int outputs_ = 0;
};

inline constexpr OpKind kUnary[] = {
    OpKind::Neg,     OpKind::Abs,   OpKind::Sign,      OpKind::Exp,   OpKind::Log,      OpKind::Sqrt,
    OpKind::Sin,     OpKind::Cos,   OpKind::Tan,       OpKind::Asin,  OpKind::Acos,     OpKind::Atan,
    OpKind::Sinh,    OpKind::Cosh,  OpKind::Asinh,     OpKind::Acosh, OpKind::Atanh,    OpKind::Tanh,
    OpKind::Sigmoid, OpKind::Relu,  OpKind::Erf,       OpKind::Gelu,  OpKind::Softplus, OpKind::Floor,
    OpKind::Ceil,    OpKind::Round, OpKind::Reciprocal};
// Those that carry an error on without making it much larger.
inline constexpr OpKind kCalm[] = {OpKind::Neg,  OpKind::Abs,     OpKind::Sin,  OpKind::Cos,
                                   OpKind::Atan, OpKind::Asinh,   OpKind::Tanh, OpKind::Erf,
                                   OpKind::Relu, OpKind::Sigmoid, OpKind::Gelu, OpKind::Softplus};
inline constexpr OpKind kBinary[] = {
    OpKind::Add, OpKind::Sub, OpKind::Mul,      OpKind::Div,      OpKind::Min,         OpKind::Max,
    OpKind::Mod, OpKind::Pow, OpKind::ReluGrad, OpKind::TanhGrad, OpKind::SigmoidGrad, OpKind::GeluGrad};
inline constexpr OpKind kCompare[] = {OpKind::Equal, OpKind::Less, OpKind::LessEqual, OpKind::Greater,
                                      OpKind::GreaterEqual};

// Shapes whose rows and whole are a multiple of a thread's elements, or not.
inline const Shape kShapes[] = {{2, 6, 5, 8}, {2, 3, 7, 7}, {4, 3, 1, 10}, {2, 1, 64}, {3, 5}, {2, 4, 3, 2}};

inline Shape stretched(const Shape& shape, Rng& rng) {
  Shape result(shape.begin() + static_cast<std::ptrdiff_t>(rng.below(shape.size() + 1)), shape.end());
  for (int64_t& size : result)
    if (rng.below(3) == 0) size = 1;
  return result;
}

// A random tangle over operands that are whole, stretched, or single numbers.
class Tangle {
 public:
  // `calm`: of ops after which float32 is still close to double, and nothing that jumps.
  Tangle(uint64_t seed, bool in_one_group, bool calm = false)
      : calm_(calm), rng_(seed, 2), build_(in_one_group) {
    shape_ = kShapes[rng_.below(std::size(kShapes))];
    for (uint64_t i = 0; i < 6; ++i)
      operands_.push_back(
          build_.input(random_tensor(i < 2 ? shape_ : stretched(shape_, rng_), seed * 10 + i)));
    made_.push_back(build_.add(OpKind::Add, {operands_[0], operands_[1]}));
    flags_.push_back(build_.add(OpKind::Less, {operands_[0], operands_[2]}));
    for (int i = 0; i < 16; ++i) calm_ ? grow_calmly() : grow(i);
  }
  Sample finish() {
    build_.output(made_.back());
    build_.output(made_[made_.size() / 2]);
    build_.output(flags_.back());
    build_.output(made_[rng_.below(made_.size())]);
    return build_.finish();
  }

 private:
  ValueId pick() { return made_[rng_.below(made_.size())]; }
  ValueId either() { return rng_.below(2) == 0 ? pick() : operands_[rng_.below(operands_.size())]; }

  void grow_calmly() {
    constexpr OpKind kTwo[] = {OpKind::Add, OpKind::Sub, OpKind::Mul,
                               OpKind::Min, OpKind::Max, OpKind::TanhGrad};
    const OpKind one = kCalm[rng_.below(std::size(kCalm))], two = kTwo[rng_.below(std::size(kTwo))];
    const ValueId a = build_.add(one, {pick()});
    made_.push_back(build_.add(two, {a, two == OpKind::TanhGrad ? pick() : either()}));
  }

  void grow(int64_t number) {
    switch (rng_.below(7)) {
      case 0:
      case 1: {
        const OpKind kind = kUnary[rng_.below(std::size(kUnary))];
        Attributes attributes;
        if (kind == OpKind::Gelu) attributes = {{Attr::Approximate, static_cast<int64_t>(rng_.below(2))}};
        made_.push_back(build_.add(kind, {pick()}, attributes));
        break;
      }
      case 2:
      case 3: {
        const OpKind kind = kBinary[rng_.below(std::size(kBinary))];
        const ValueId a = pick();
        made_.push_back(build_.add(kind, {a, kind >= OpKind::ReluGrad ? pick() : either()}));
        break;
      }
      case 4:
        flags_.push_back(build_.add(kCompare[rng_.below(std::size(kCompare))], {pick(), either()}));
        break;
      case 5:
        made_.push_back(build_.add(OpKind::Where, {flags_.back(), pick(), either()}));
        break;
      default:
        if (rng_.below(2) == 0)
          made_.push_back(build_.add(OpKind::Dropout, {pick()}, {{Attr::Ratio, 0.3}, {Attr::Key, number}}));
        else
          made_.push_back(build_.cast(build_.add(OpKind::Not, {flags_.back()}), DType::F32));
    }
  }

  const bool calm_;
  Rng rng_;
  SampleBuilder build_;
  Shape shape_;
  std::vector<ValueId> operands_, made_, flags_;
};

// What a test cannot go on without.
template <typename T>
T need(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// A graph's kernels, made before any is run, so that all of a test's are compiled together.
class Prepared {
 public:
  Prepared(Backend& backend, const Graph& graph) : backend_(backend), graph_(graph) {
    for (const GroupSignature& group : group_signatures(graph)) {
      groups_.push_back(group);
      kernels_.push_back(need(backend.make_kernel(graph, group)));
      EXPECT_NE(kernels_.back()->implementation(), "reference");
    }
  }
  size_t size() const { return kernels_.size(); }
  const Kernel& kernel(size_t i) const { return *kernels_[i]; }

  // `in_place`: outputs take over the inputs that their kernels name.
  std::vector<Tensor> outputs(const std::vector<Tensor>& inputs, bool in_place = false) {
    views_.assign(graph_.values().size(), {});
    for (size_t i = 0; i < inputs.size(); ++i) {
      const View view = take(graph_.inputs()[i]);
      need(backend_.upload(inputs[i], view, dag::Layout::Plain));
    }
    for (const dag::Op& op : graph_.ops())
      if (op.kind == OpKind::Constant) {
        EXPECT_TRUE(
            backend_.upload(graph_.constant(op), take(op.outputs[0]), dag::Layout::Plain).has_value());
      }
    for (size_t i = 0; i < kernels_.size(); ++i) run(i, in_place);
    std::vector<Tensor> results;
    for (const auto& output : graph_.outputs())
      results.push_back(
          need(backend_.download(views_[output.value.index], graph_.spec(output.value), dag::Layout::Plain)));
    return results;
  }

 private:
  View take(ValueId value) {
    memory_.push_back(
        need(backend_.allocate(backend_.storage_bytes(graph_.spec(value), dag::Layout::Plain))));
    return views_[value.index] = {memory_.back().get(), 0};
  }
  void run(size_t i, bool in_place) {
    const GroupSignature& group = groups_[i];
    std::vector<View> in, out;
    for (const ValueId value : group.inputs) in.push_back(views_[value.index]);
    for (size_t k = 0; k < group.outputs.size(); ++k) {
      const int over = in_place ? kernels_[i]->in_place_input(k) : -1;
      const View view = over < 0 ? take(group.outputs[k]) : in[static_cast<size_t>(over)];
      views_[group.outputs[k].index] = view;
      out.push_back(view);
    }
    need(kernels_[i]->run(in, out, {}, kContext));
  }

  Backend& backend_;
  const Graph& graph_;
  std::vector<GroupSignature> groups_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<View> views_;
};

inline std::vector<Tensor> by_reference(const Sample& sample) {
  const auto reference = make_reference_backend();
  return outputs_of(*reference, sample.graph, sample.inputs, kContext);
}

inline cuda::FusedSource source_of(const Graph& graph) {
  auto made = cuda::make_fused_source(graph, group_signatures(graph).front());
  EXPECT_TRUE(made.has_value());
  return std::move(*made);
}

// Zeroes, infinities, NaN, the ends of what a float holds, and where functions change their formula.
inline Tensor special_floats() {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0.0f,   infinity,   std::numeric_limits<float>::quiet_NaN(),
                            1e-45f, 1e-38f,     1e-20f,
                            1e-4f,  0.3f,       0.5f,
                            0.625f, 0.93f,      1.0f,
                            1.5f,   2.0f,       2.5f,
                            3.7f,   4.1f,       9.0f,
                            20.0f,  70.0f,      87.0f,
                            88.5f,  90.0f,      105.0f,
                            1e4f,   8388609.0f, 2e9f,
                            1e20f,  3.4e38f};
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return dag::make_tensor({static_cast<int64_t>(values.size())}, std::span<const float>(values));
}

// As relative_error, but element by element; absolute below 1.
inline double worst_error(const Tensor& actual, const Tensor& expected) {
  const std::vector<double> a = dag::to_doubles(actual), e = dag::to_doubles(expected);
  double worst = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    if (std::isnan(e[i]) && std::isnan(a[i])) continue;
    if (a[i] == e[i]) continue;
    const double error = std::abs(a[i] - e[i]) / std::max(1.0, std::abs(e[i]));
    worst = std::isfinite(error) ? std::max(worst, error) : 1e300;
  }
  return worst;
}

}  // namespace weft::peer
