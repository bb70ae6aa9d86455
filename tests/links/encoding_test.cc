// Tensors to payloads and back.
#include "peer/service/encoding.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/rng.h"
#include "peer/service/bulk.h"

namespace weft::peer::test {
namespace {

constexpr const char* kCodecs[] = {"dense",
                                   "fp16",
                                   "bf16",
                                   "int8",
                                   "int6",
                                   "int4",
                                   "int3",
                                   "int4z",
                                   "topk:0.1:fp16",
                                   "topk:0.02:int8+int4",
                                   "randomk:0.5:fp32"};

dag::Tensor normal_tensor(uint64_t seed) {
  Rng rng(seed, 0);
  dag::Tensor tensor({dag::DType::F32, {5, 7, 33}});
  for (float& value : tensor.mutable_as<float>()) value = static_cast<float>(rng.normal());
  return tensor;
}
proto::TensorHeader header_of(const dag::Tensor& tensor, const char* codec) {
  return {.step = 3, .microbatch = 1, .edge = 2, .spec = tensor.spec(), .codec = *compress::parse(codec)};
}
bool are_same(const dag::Tensor& a, const dag::Tensor& b) {
  return a.spec() == b.spec() && std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
}

template <typename T>
dag::Tensor tensor_with(dag::DType dtype, T usual, T one) {
  dag::Tensor tensor({dtype, {37}});
  for (T& value : tensor.mutable_as<T>()) value = usual;
  tensor.mutable_as<T>()[21] = one;
  return tensor;
}

// Of what is served the entry decides (serve/spoilt_rows.h).
// It is in the weights of every replica, whatever its job skips.
TEST(Encoding, WhatReplicasAgreeAboutIsFinite) {
  const auto header = [](const dag::Tensor& tensor) {
    return proto::TensorHeader{.program = proto::ProgramKind::Agree, .spec = tensor.spec()};
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const dag::Tensor tensor = tensor_with<float>(dag::DType::F32, 1, bad);
    EXPECT_FALSE(is_fit(header(tensor), tensor)) << bad;
    EXPECT_TRUE(must_be_finite(header(tensor)) && !is_taken_unseen(header(tensor), true));
  }
  const dag::Tensor good = tensor_with<float>(dag::DType::F32, 1, -1e30f);
  EXPECT_TRUE(is_fit(header(good), good));
}

// Each side draws the same, whoever of the replicas sends, and other numbers for the mean.
TEST(Encoding, AnAgreedTensorIsDrawnByItsRoundAndSender) {
  const dag::Tensor tensor = normal_tensor(5);
  const auto encoded = [&](uint64_t before, uint16_t replica, proto::Direction direction) {
    proto::TensorHeader header{.step = before,
                               .edge = 2,
                               .program = proto::ProgramKind::Agree,
                               .direction = direction,
                               .replica = replica,
                               .spec = tensor.spec(),
                               .codec = *compress::parse("int4")};
    compress::Scratch scratch;
    return encode_tensor(header, tensor, 7, scratch);
  };
  using enum proto::Direction;
  EXPECT_TRUE(are_same(encoded(60, 1, Forward), encoded(60, 1, Forward)));
  EXPECT_FALSE(are_same(encoded(60, 1, Forward), encoded(60, 2, Forward)));
  EXPECT_FALSE(are_same(encoded(60, 1, Forward), encoded(120, 1, Forward)));
  EXPECT_FALSE(are_same(encoded(60, 1, Forward), encoded(60, 1, Backward)));
  EXPECT_TRUE(are_same(encoded(60, 1, Backward), encoded(60, 2, Backward))) << "the mean is the run's";
}

TEST(Encoding, WhatIsLearntFromHasNoNaNAndNoInfinityButMinus) {
  const auto may = [](const dag::Tensor& tensor, proto::ProgramKind program = proto::ProgramKind::Train) {
    return is_fit({.program = program, .spec = tensor.spec()}, tensor);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const float good : {0.0f, -0.0f, 1e-45f, -1e-45f, std::numeric_limits<float>::max(),
                           -std::numeric_limits<float>::max(), -kInfinity})
    EXPECT_TRUE(may(tensor_with<float>(dag::DType::F32, 1, good))) << good;
  for (const float bad : {kInfinity, kNaN, -kNaN, std::numeric_limits<float>::signaling_NaN()}) {
    EXPECT_FALSE(may(tensor_with<float>(dag::DType::F32, -kInfinity, bad))) << bad;
    EXPECT_FALSE(may(tensor_with<double>(dag::DType::F64, 1, double{bad}))) << bad;
    EXPECT_TRUE(may(tensor_with<float>(dag::DType::F32, 1, bad), proto::ProgramKind::Serve));
    EXPECT_TRUE(may(tensor_with<float>(dag::DType::F32, 1, bad), proto::ProgramKind::Evaluate));
    EXPECT_TRUE(may(tensor_with<float>(dag::DType::F32, 1, bad), proto::ProgramKind::Predict));
  }
  EXPECT_TRUE(may(tensor_with<double>(dag::DType::F64, 1e300, -std::numeric_limits<double>::infinity())));
  EXPECT_TRUE(may(tensor_with<int32_t>(dag::DType::I32, 1, 0x7fc00000)));
  for (const auto& [dtype, infinity] : {std::pair{dag::DType::F16, 0x7c00}, {dag::DType::BF16, 0x7f80}}) {
    const auto with = [&](int bits) {
      return tensor_with<uint16_t>(dtype, 0x3c00, static_cast<uint16_t>(bits));
    };
    EXPECT_TRUE(may(with(infinity - 1)) && may(with(0x8000 + infinity)));
    EXPECT_FALSE(may(with(infinity)) || may(with(infinity + 1)) || may(with(0x8000 + infinity + 1)));
  }
}

TEST(Encoding, IsTheSameBytesWheneverItIsMadeAndOthersElsewhere) {
  for (const char* codec : kCodecs) {
    SCOPED_TRACE(codec);
    const dag::Tensor tensor = normal_tensor(1), other = normal_tensor(2);
    compress::Scratch scratch, used;
    proto::TensorHeader header = header_of(tensor, codec), again = header;
    encode_tensor(again, other, 9, used);
    again = header;
    const dag::Tensor payload = encode_tensor(header, tensor, 9, scratch);
    EXPECT_TRUE(are_same(payload, encode_tensor(again, tensor, 9, used)));
    const auto decoded = decode_tensor(header, payload, 9);
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
    EXPECT_EQ(decoded->spec(), tensor.spec());
    EXPECT_EQ(
        payload.bytes().size() <= static_cast<size_t>(proto::payload_bytes(header.spec, header.codec).value),
        true);
    // Of another microbatch, or in an evaluation, what is drawn is drawn anew.
    if (header.codec.kind == compress::Kind::Blocks || header.codec.kind == compress::Kind::RandomK) {
      ++again.microbatch;
      EXPECT_FALSE(are_same(payload, encode_tensor(again, tensor, 9, used)));
      again = header;
      again.program = proto::ProgramKind::Evaluate;
      EXPECT_FALSE(are_same(payload, encode_tensor(again, tensor, 9, used)));
    }
  }
}

TEST(Encoding, WhatIsNotFiniteStaysAsItIs) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()})
    for (const char* codec : kCodecs) {
      SCOPED_TRACE(codec);
      dag::Tensor tensor = normal_tensor(3);
      tensor.mutable_as<float>()[100] = bad;
      compress::Scratch scratch;
      proto::TensorHeader header = header_of(tensor, codec);
      const dag::Tensor payload = encode_tensor(header, tensor, 9, scratch);
      EXPECT_EQ(header.codec.kind, compress::Kind::Dense);
      const auto decoded = decode_tensor(header, payload, 9);
      ASSERT_TRUE(decoded.has_value());
      EXPECT_TRUE(are_same(*decoded, tensor));
    }
}

TEST(Encoding, DamageIsSaidWithItsPlace) {
  const dag::Tensor tensor = normal_tensor(4);
  compress::Scratch scratch;
  proto::TensorHeader header = header_of(tensor, "topk:0.1:fp16");
  const dag::Tensor payload = encode_tensor(header, tensor, 9, scratch);
  const dag::Tensor shorter(payload_spec(payload.bytes().size() - 1),
                            payload.bytes().first(payload.bytes().size() - 1));
  const auto decoded = decode_tensor(header, shorter, 9);
  ASSERT_FALSE(decoded.has_value());
  EXPECT_EQ(decoded.error().code, ErrorCode::Corrupted);
  EXPECT_NE(decoded.error().message.find("edge 2, step 3, microbatch 1"), std::string::npos)
      << decoded.error().message;
}

// Of each range, each sender, each parameter and each step other numbers are drawn, for the step's sum others
// again, and no tensor of a link has the same.
TEST(Encoding, ASumOfGradientsIsDrawnByItsPlaceAlone) {
  const dag::Tensor tensor = normal_tensor(6);
  compress::Scratch scratch;
  const auto encoded = [&](const auto& change) {
    proto::TensorHeader header{.step = 5,
                               .microbatch = 2,
                               .edge = 3,
                               .program = proto::ProgramKind::Sum,
                               .replica = 1,
                               .spec = tensor.spec(),
                               .codec = *compress::parse("int4")};
    change(header);
    dag::Tensor payload = encode_tensor(header, tensor, 9, scratch);
    const auto decoded = decode_tensor(header, payload, 9);
    EXPECT_TRUE(decoded.has_value());
    return payload;
  };
  const std::vector<dag::Tensor> all = {
      encoded([](auto&) {}),
      encoded([](auto& header) { header.step = 6; }),
      encoded([](auto& header) { header.microbatch = 3; }),
      encoded([](auto& header) { header.edge = 4; }),
      encoded([](auto& header) { header.replica = 2; }),
      encoded([](auto& header) { header.direction = proto::Direction::Backward; }),
      encoded([](auto& header) { header.program = proto::ProgramKind::Train; }),
      encoded([](auto& header) { header.program = proto::ProgramKind::Evaluate; }),
      encoded([](auto& header) { header.program = proto::ProgramKind::Agree; })};
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = 0; b < a; ++b) EXPECT_FALSE(are_same(all[a], all[b])) << a << " and " << b;
  EXPECT_TRUE(are_same(all[0], encoded([](auto& header) {
                         header.run = 7;
                         header.plan_version = 8;
                       })))
      << "a step that is made again is the same";
}

}  // namespace
}  // namespace weft::peer::test
