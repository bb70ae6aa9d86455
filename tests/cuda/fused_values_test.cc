// Elementwise groups of whole numbers, casts and draws: the values of the reference.
#include <limits>
#include <memory>

#include "tests/cuda/fused_samples.h"

namespace weft::peer {
namespace {

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

}  // namespace
}  // namespace weft::peer
