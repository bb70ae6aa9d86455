// Kernels of elementwise groups, made as text and run on the shim: a group gives the bits of its ops one by
// one and the values of the reference, whatever is stretched, and the functions that they are made of are
// exact to a few units in the last place.
#define WEFT_CUDA_SHIM 1  // math.cuh is called here as well: launch.h as kernels see it

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "peer/backend/cuda/fused_source.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/run_graph.h"
#include "tests/cuda/backend_on_host.h"

namespace weft::peer {
namespace {

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

constexpr StepContext kContext{.seed = 0x1234567890u, .step = 3, .sample_position = 5, .microbatch_size = 2};

// ---- graphs ----

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

constexpr OpKind kUnary[] = {
    OpKind::Neg,     OpKind::Abs,   OpKind::Sign,      OpKind::Exp,   OpKind::Log,      OpKind::Sqrt,
    OpKind::Sin,     OpKind::Cos,   OpKind::Tan,       OpKind::Asin,  OpKind::Acos,     OpKind::Atan,
    OpKind::Sinh,    OpKind::Cosh,  OpKind::Asinh,     OpKind::Acosh, OpKind::Atanh,    OpKind::Tanh,
    OpKind::Sigmoid, OpKind::Relu,  OpKind::Erf,       OpKind::Gelu,  OpKind::Softplus, OpKind::Floor,
    OpKind::Ceil,    OpKind::Round, OpKind::Reciprocal};
// Those that carry an error on without making it much larger.
constexpr OpKind kCalm[] = {OpKind::Neg,  OpKind::Abs,     OpKind::Sin,  OpKind::Cos,
                            OpKind::Atan, OpKind::Asinh,   OpKind::Tanh, OpKind::Erf,
                            OpKind::Relu, OpKind::Sigmoid, OpKind::Gelu, OpKind::Softplus};
constexpr OpKind kBinary[] = {OpKind::Add,      OpKind::Sub,      OpKind::Mul,         OpKind::Div,
                              OpKind::Min,      OpKind::Max,      OpKind::Mod,         OpKind::Pow,
                              OpKind::ReluGrad, OpKind::TanhGrad, OpKind::SigmoidGrad, OpKind::GeluGrad};
constexpr OpKind kCompare[] = {OpKind::Equal, OpKind::Less, OpKind::LessEqual, OpKind::Greater,
                               OpKind::GreaterEqual};

// Shapes whose rows and whole are a multiple of a thread's elements, or not.
const Shape kShapes[] = {{2, 6, 5, 8}, {2, 3, 7, 7}, {4, 3, 1, 10}, {2, 1, 64}, {3, 5}, {2, 4, 3, 2}};

Shape stretched(const Shape& shape, Rng& rng) {
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

// ---- running ----

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

std::vector<Tensor> by_reference(const Sample& sample) {
  const auto reference = make_reference_backend();
  return outputs_of(*reference, sample.graph, sample.inputs, kContext);
}

cuda::FusedSource source_of(const Graph& graph) {
  auto made = cuda::make_fused_source(graph, group_signatures(graph).front());
  EXPECT_TRUE(made.has_value());
  return std::move(*made);
}

// ---- groups ----

constexpr uint64_t kSeeds = 12;

TEST(FusedSource, AGroupGivesTheBitsOfItsOpsOneByOne) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> apart, fused;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    apart.push_back(Tangle(seed, /*in_one_group=*/false).finish());
    fused.push_back(Tangle(seed, /*in_one_group=*/true).finish());
  }
  std::vector<std::unique_ptr<Prepared>> one_by_one, together;
  for (size_t i = 0; i < apart.size(); ++i) {
    one_by_one.push_back(std::make_unique<Prepared>(*backend, apart[i].graph));
    together.push_back(std::make_unique<Prepared>(*backend, fused[i].graph));
  }
  ASSERT_TRUE(backend->prepare().has_value());
  for (size_t i = 0; i < apart.size(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(i + 1));
    ASSERT_EQ(together[i]->size(), 1u);
    EXPECT_EQ(together[i]->kernel(0).implementation().substr(0, 5), "fused");
    const auto expected = one_by_one[i]->outputs(apart[i].inputs),
               actual = together[i]->outputs(fused[i].inputs),
               taken_over = together[i]->outputs(fused[i].inputs, /*in_place=*/true);
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_TRUE(same_bytes(actual[k], expected[k])) << "output " << k;
      EXPECT_TRUE(same_bytes(taken_over[k], expected[k])) << "output " << k << " in place";
    }
  }
}

TEST(FusedSource, AGroupIsCloseToTheReference) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> samples;
  for (uint64_t seed = 101; seed < 101 + kSeeds; ++seed)
    samples.push_back(Tangle(seed, /*in_one_group=*/true, /*calm=*/true).finish());
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(101 + i));
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_LE(relative_error(actual[k], expected[k]), 1e-5) << "output " << k;
  }
}

// Stretched operands of every kind, one op at a time, so that no error grows.
TEST(FusedSource, StretchedOperandsAreReadAsTheReferenceReadsThem) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> samples;
  for (const Shape& shape : kShapes) {
    SampleBuilder build(/*in_one_group=*/true);
    Rng rng(shape.size(), 3);
    const ValueId whole = build.input(random_tensor(shape, 1));
    for (uint64_t i = 0; i < 8; ++i)
      build.output(build.add(OpKind::Add, {whole, build.input(random_tensor(stretched(shape, rng), i + 2))}));
    samples.push_back(build.finish());
  }
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("shape " + dag::to_string(kShapes[i]));
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_TRUE(same_bytes(actual[k], expected[k])) << "output " << k;
  }
}

// Zeroes, infinities, NaN, the ends of what a float holds, and where functions change their formula.
Tensor special_floats() {
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
double worst_error(const Tensor& actual, const Tensor& expected) {
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

TEST(FusedSource, SpecialNumbersGoWhereTheyGoInTheReference) {
  const auto backend = test::cuda_on_host();
  SampleBuilder build(/*in_one_group=*/true);
  const Tensor special = special_floats();
  const int64_t count = special.element_count();
  const ValueId x = build.input(special);
  std::vector<std::string> names;
  const auto put = [&](OpKind kind, std::vector<ValueId> operands, const Attributes& attributes = {}) {
    names.push_back(std::string(to_string(kind)));
    build.output(build.add(kind, std::move(operands), attributes));
  };
  for (const OpKind kind : kUnary) put(kind, {x});
  put(OpKind::Gelu, {x}, {{Attr::Approximate, int64_t{1}}});
  put(OpKind::IsNaN, {x});
  put(OpKind::IsInf, {x});
  put(OpKind::RoundThrough, {x});
  put(OpKind::Clip, {x}, {{Attr::Min, -1.5}, {Attr::Max, 2.25}});
  put(OpKind::Clip, {x}, {{Attr::Max, 2.25}});
  for (const OpKind kind : {OpKind::TanhGrad, OpKind::ReluGrad, OpKind::SigmoidGrad}) put(kind, {x, x});
  const Sample one = build.finish();

  SampleBuilder pairs(/*in_one_group=*/true);
  std::vector<float> left, right;
  for (int64_t i = 0; i < count * count; ++i) {
    left.push_back(special.as<float>()[static_cast<size_t>(i / count)]);
    right.push_back(special.as<float>()[static_cast<size_t>(i % count)]);
  }
  const ValueId a = pairs.input(dag::make_tensor({count * count}, std::span<const float>(left))),
                b = pairs.input(dag::make_tensor({count * count}, std::span<const float>(right)));
  std::vector<std::string> pair_names;
  for (const OpKind kind :
       {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div, OpKind::Min, OpKind::Max, OpKind::Mod,
        OpKind::Pow, OpKind::Equal, OpKind::Less, OpKind::LessEqual, OpKind::Greater, OpKind::GreaterEqual}) {
    pair_names.push_back(std::string(to_string(kind)));
    pairs.output(pairs.add(kind, {a, b}));
  }
  pair_names.push_back("Mod C");
  pairs.output(pairs.add(OpKind::Mod, {a, b}, {{Attr::Fmod, int64_t{1}}}));
  const Sample two = pairs.finish();

  Prepared unary(*backend, one.graph), binary(*backend, two.graph);
  const auto compare = [](Prepared& prepared, const Sample& sample, const std::vector<std::string>& of) {
    const auto expected = by_reference(sample), actual = prepared.outputs(sample.inputs);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE(worst_error(actual[i], expected[i]), 1e-6) << of[i];
  };
  compare(unary, one, names);
  compare(binary, two, pair_names);
}

// ---- whole numbers and casts ----

std::vector<int64_t> whole_numbers(DType dtype) {
  std::vector<int64_t> values{0, 1, 2, 3, 5, 7, 8, 15, 31, 63, 64, 100, 127};
  const int64_t bits = 8 * dag::element_size(dtype);
  const bool is_signed =
      dtype == DType::I8 || dtype == DType::I16 || dtype == DType::I32 || dtype == DType::I64;
  const int64_t high =
      bits == 64 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << (bits - (is_signed ? 1 : 0))) - 1;
  for (const int64_t value : {high, high - 1, high / 3}) values.push_back(value);
  if (is_signed)
    for (const int64_t value : {int64_t{-1}, int64_t{-2}, int64_t{-7}, int64_t{-100}, -high, -high - 1})
      values.push_back(value);
  return values;
}

Tensor whole_tensor(DType dtype, const std::vector<int64_t>& values) {
  return dag::from_int64s({dtype, {static_cast<int64_t>(values.size())}}, values);
}

constexpr DType kWhole[] = {DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64};

Sample whole_sample(DType dtype) {
  SampleBuilder build(/*in_one_group=*/true);
  std::vector<int64_t> left, right;
  const std::vector<int64_t> values = whole_numbers(dtype);
  for (const int64_t a : values)
    for (const int64_t b : values) left.push_back(a), right.push_back(b);
  const ValueId a = build.input(whole_tensor(dtype, left)), b = build.input(whole_tensor(dtype, right));
  const auto put = [&](OpKind kind, std::vector<ValueId> operands, const Attributes& attributes = {}) {
    build.output(build.add(kind, std::move(operands), attributes));
  };
  for (const OpKind kind : {OpKind::Neg, OpKind::Abs, OpKind::Sign, OpKind::BitNot}) put(kind, {a});
  for (const OpKind kind :
       {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div, OpKind::Pow, OpKind::Min, OpKind::Max,
        OpKind::Mod, OpKind::BitAnd, OpKind::BitOr, OpKind::BitXor, OpKind::Equal, OpKind::Less,
        OpKind::LessEqual, OpKind::Greater, OpKind::GreaterEqual})
    put(kind, {a, b});
  put(OpKind::Mod, {a, b}, {{Attr::Fmod, int64_t{1}}});
  put(OpKind::Clip, {a}, {{Attr::Min, 1.5}, {Attr::Max, 90.0}});
  put(OpKind::Clip, {a}, {{Attr::Min, -1e30}, {Attr::Max, 1e30}});
  if (dtype == DType::U8 || dtype == DType::U16 || dtype == DType::U32)
    for (const OpKind kind : {OpKind::ShiftLeft, OpKind::ShiftRight}) put(kind, {a, b});
  return build.finish();
}

TEST(FusedSource, WholeNumbersWrapAsInTheReference) {
  const auto backend = test::cuda_on_host();
  std::vector<Sample> samples;
  for (const DType dtype : kWhole) samples.push_back(whole_sample(dtype));
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE(std::string(to_string(kWhole[i])));
    EXPECT_EQ(prepared[i]->kernel(0).implementation().substr(0, 5), "fused");
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_TRUE(same_bytes(actual[k], expected[k])) << "output " << k;
  }
}

// Small enough to be exact in what it is cast to by way of what it is cast from, and all sorts of the rest.
Sample cast_sample(DType from) {
  constexpr DType kAll[] = {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8,  DType::U8,
                            DType::I16, DType::U16, DType::I32, DType::U32,  DType::I64, DType::Bool};
  SampleBuilder build(/*in_one_group=*/true);
  ValueId x;
  if (from == DType::Bool || dag::is_integer(from)) {
    x = build.input(
        whole_tensor(from, from == DType::Bool ? std::vector<int64_t>{0, 1, 1} : whole_numbers(from)));
  } else {
    std::vector<double> values = dag::to_doubles(special_floats());
    for (const double more : {1e-7, 6e-8, 3e-8, 6.1e-5, 65504.0, 65519.0, 65520.0, 127.5, 255.9, 32767.5,
                              2147483520.0, 1.0009765625, 1.00048828125, 1.0078125, 1.00390625})
      values.push_back(more), values.push_back(-more);
    x = build.input(dag::from_doubles({from, {static_cast<int64_t>(values.size())}}, values));
  }
  for (const DType to : kAll) build.output(build.cast(x, to));
  return build.finish();
}

TEST(FusedSource, CastsAreTheReferences) {
  const auto backend = test::cuda_on_host();
  const std::vector<DType> dtypes{DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8,  DType::U8,
                                  DType::I16, DType::U16, DType::I32, DType::U32,  DType::I64, DType::Bool};
  std::vector<Sample> samples;
  for (const DType dtype : dtypes) samples.push_back(cast_sample(dtype));
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("from " + std::string(to_string(dtypes[i])));
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_EQ(worst_error(actual[k], expected[k]), 0) << "to " << to_string(expected[k].dtype());
  }
}

// ---- draws ----

Sample draws_sample(const Shape& shape) {
  SampleBuilder build(/*in_one_group=*/true);
  const ValueId a = build.input(dag::make_scalar(DType::F32, -0.5)),
                b = build.input(dag::make_scalar(DType::F32, 2));
  const auto draw = [&](OpKind kind, int64_t key) {
    return build.add(kind, {a, b}, {{Attr::Shape, shape}, {Attr::DType, int64_t{0}}, {Attr::Key, key}});
  };
  const ValueId uniform = draw(OpKind::RandomUniform, 7);
  build.output(uniform);
  build.output(draw(OpKind::RandomNormal, 8));
  build.output(build.add(OpKind::Dropout, {uniform}, {{Attr::Ratio, 0.4}, {Attr::Key, int64_t{9}}}));
  return build.finish();
}

// From places that are no multiple of a block's draws as well: five samples of 3, 5 or 7 elements stand
// before.
TEST(FusedSource, DrawsAreTheReferences) {
  const auto backend = test::cuda_on_host();
  const std::vector<Shape> shapes{{2, 8}, {2, 3}, {2, 5}, {2, 7, 9}, {3, 5}, {4, 64}};
  std::vector<Sample> samples;
  for (const Shape& shape : shapes) samples.push_back(draws_sample(shape));
  std::vector<std::unique_ptr<Prepared>> prepared;
  for (const Sample& sample : samples) prepared.push_back(std::make_unique<Prepared>(*backend, sample.graph));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("shape " + dag::to_string(shapes[i]));
    const auto expected = by_reference(samples[i]), actual = prepared[i]->outputs(samples[i].inputs);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_LE(worst_error(actual[k], expected[k]), 2e-6) << "output " << k;
    const auto kept = dag::to_doubles(actual[2]), as_kept = dag::to_doubles(expected[2]);
    for (size_t k = 0; k < kept.size(); ++k) EXPECT_EQ(kept[k] == 0, as_kept[k] == 0) << "element " << k;
  }
}

// ---- texts ----

Graph sum_of(const Shape& a, const Shape& b, int names_before = 0) {
  GraphBuilder builder(dag::op_table());
  for (int i = 0; i < names_before; ++i) builder.input("other" + std::to_string(i), {DType::F32, {3}});
  const ValueId x = builder.input("a", {DType::F32, a}), y = builder.input("b", {DType::F32, b});
  builder.output("y", builder.add(OpKind::Add, {x, y}), OutputRole::Prediction);
  return builder.finish();
}

TEST(FusedSource, EqualGroupsAreOneKernel) {
  const cuda::FusedSource one = source_of(sum_of({4, 8}, {8})), same = source_of(sum_of({4, 8}, {8}, 3)),
                          longer = source_of(sum_of({9, 8}, {8})), other = source_of(sum_of({4, 8}, {4, 1}));
  EXPECT_EQ(one.source.name, same.source.name);
  EXPECT_EQ(one.source.code, same.source.code);
  EXPECT_EQ(one.source.code, longer.source.code);
  EXPECT_NE(one.source.name, other.source.name);
}

TEST(FusedSource, OnlyAWholeOperandOfTheSameTypeIsTakenOver) {
  EXPECT_EQ(source_of(sum_of({4, 8}, {8})).in_place, std::vector<int>{0});
  EXPECT_EQ(source_of(sum_of({8}, {4, 8})).in_place, std::vector<int>{1});
  EXPECT_EQ(source_of(sum_of({4, 1}, {8})).in_place, std::vector<int>{-1});
  GraphBuilder builder(dag::op_table());
  const ValueId x = builder.input("x", {DType::F32, {8}});
  builder.output("y", builder.add(OpKind::Less, {x, x}), OutputRole::Prediction);
  EXPECT_EQ(source_of(builder.finish()).in_place, std::vector<int>{-1});
}

TEST(FusedSource, LongTensorsAreCountedInSixtyFourBits) {
  const int64_t most = int64_t{1} << 31, beyond = most + 4;
  const cuda::FusedSource narrow = source_of(sum_of({most}, {1})), wide = source_of(sum_of({beyond}, {1})),
                          longest = source_of(sum_of({dag::kElementCountMax}, {1}));
  EXPECT_NE(narrow.source.code.find("const uint32_t i ="), std::string::npos);
  EXPECT_NE(wide.source.code.find("const uint64_t i ="), std::string::npos);
  EXPECT_EQ(wide.grid.blocks, static_cast<uint32_t>(beyond / 1024 + 1));
  EXPECT_LT(longest.grid.blocks, uint32_t{1} << 31);
}

TEST(FusedSource, WhatIsNotServedIsDeclined) {
  const auto declines = [](OpKind kind, DType dtype) {
    GraphBuilder builder(dag::op_table());
    const ValueId x = builder.input("x", {dtype, {8}});
    builder.output("y", builder.add(kind, {x}), OutputRole::Prediction);
    const Graph graph = builder.finish();
    return !cuda::make_fused_source(graph, group_signatures(graph).front()).has_value();
  };
  for (const DType dtype : {DType::F64, DType::F16, DType::BF16}) EXPECT_TRUE(declines(OpKind::Exp, dtype));
  EXPECT_FALSE(declines(OpKind::Exp, DType::F32));
  EXPECT_FALSE(declines(OpKind::Neg, DType::I16));
}

}  // namespace
}  // namespace weft::peer
