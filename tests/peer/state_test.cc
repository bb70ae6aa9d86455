#include "peer/state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dag/autodiff.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/peer/stage_runner.h"

namespace weft::peer {
namespace {

using dag::StateSlot;

const dag::TensorSpec kSpec{dag::DType::F32, {3, 5}};

State::Claim claim_of(const char* name, StateSlot slot = StateSlot::Value) {
  return {dag::of_initializer(name, slot), kSpec};
}

TEST(State, WhatIsThereIsShared) {
  const auto backend = make_reference_backend();
  State state(*backend);
  const State::Claim first[] = {claim_of("a"), claim_of("a", StateSlot::M)};
  ok_or_fail(state.claim(first));
  const Bytes bytes = state.bytes();
  const Tensor tensor = test::random_tensor(1, 1, kSpec.shape);
  ok_or_fail(state.write(first[0].key, tensor));
  ok_or_fail(state.claim(first));
  EXPECT_EQ(state.bytes(), bytes);
  EXPECT_EQ(to_doubles(value_or_fail(state.read(first[0].key))), to_doubles(tensor));
  EXPECT_EQ(to_doubles(value_or_fail(state.read(first[1].key))), std::vector<double>(15, 0.0));
}

TEST(State, AHalfIsWidened) {
  const auto backend = make_reference_backend();
  State state(*backend);
  const State::Claim claim = claim_of("a");
  ok_or_fail(state.claim({&claim, 1}));
  for (const dag::DType half : {dag::DType::F16, dag::DType::BF16}) {
    const Tensor tensor =
        dag::from_doubles({half, kSpec.shape}, to_doubles(test::random_tensor(1, 1, kSpec.shape)));
    ok_or_fail(state.write(claim.key, tensor));
    EXPECT_EQ(to_doubles(value_or_fail(state.read(claim.key))), to_doubles(tensor));
  }
  EXPECT_EQ(state.write(claim.key, dag::Tensor(dag::TensorSpec{dag::DType::F16, {15}})).error().code,
            ErrorCode::InvalidArgument);
  EXPECT_EQ(state.write(claim.key, dag::Tensor(dag::TensorSpec{dag::DType::F64, kSpec.shape})).error().code,
            ErrorCode::InvalidArgument);
}

// More than two pieces, the last of them short, in float32 and widened.
TEST(State, ALargeTensorIsWrittenInPiecesThatMakeItUp) {
  const int64_t count = (int64_t{10} << 20) + 7;
  const auto backend = make_reference_backend();
  State state(*backend);
  const State::Claim claim{dag::of_initializer("a"), {dag::DType::F32, {count}}};
  ok_or_fail(state.claim({&claim, 1}));
  for (const dag::DType dtype : {dag::DType::F32, dag::DType::BF16}) {
    dag::Tensor tensor(dag::TensorSpec{dtype, {count}});
    for (size_t i = 0; i < tensor.bytes().size(); ++i)  // of either type: a number
      tensor.mutable_bytes()[i] = static_cast<std::byte>((i * 2654435761u) >> 13 & 0x3f);
    const std::byte* next = tensor.bytes().data();
    int pieces = 0;
    ok_or_fail(state.write(claim.key, tensor, [&](std::span<const std::byte> bytes) {
      EXPECT_EQ(bytes.data(), next);
      next = bytes.data() + bytes.size();
      ++pieces;
      EXPECT_FALSE(tensor.is_shared());
    }));
    EXPECT_EQ(next, tensor.bytes().data() + tensor.bytes().size());
    EXPECT_EQ(pieces, 3);
    const dag::Tensor wanted = dtype == dag::DType::F32 ? tensor : dag::widen_half(tensor);
    const dag::Tensor found = value_or_fail(state.read(claim.key));
    EXPECT_TRUE(
        std::equal(found.bytes().begin(), found.bytes().end(), wanted.bytes().begin(), wanted.bytes().end()));
  }
}

TEST(State, AWeightIsOneMemoryUnderEitherOfItsSlots) {
  const auto backend = make_reference_backend();
  State state(*backend);
  const State::Claim claims[] = {claim_of("mean", StateSlot::RunningStatistic), claim_of("mean")};
  ok_or_fail(state.claim(claims));
  const Tensor tensor = test::random_tensor(1, 2, kSpec.shape);
  ok_or_fail(state.write(claims[0].key, tensor));
  EXPECT_EQ(to_doubles(value_or_fail(state.read(claims[1].key))), to_doubles(tensor));
}

TEST(State, AClaimThatDisagreesTakesNothing) {
  const auto backend = make_reference_backend();
  State state(*backend);
  const State::Claim first[] = {claim_of("a")};
  ok_or_fail(state.claim(first));
  const Bytes bytes = state.bytes();
  const State::Claim wrong[] = {claim_of("b"), {dag::of_initializer("a"), {dag::DType::F32, {5, 3}}}};
  const auto refused = state.claim(wrong);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("'a' is f32[3,5]"), std::string::npos) << refused.error().message;
  EXPECT_EQ(state.find(wrong[0].key), nullptr);
  EXPECT_EQ(state.bytes(), bytes);
  EXPECT_EQ(state.read(wrong[0].key).error().code, ErrorCode::NotFound);
}

// An executor that evaluates reads what another one trained, without a copy.
TEST(State, ExecutorsShareTheirWeights) {
  const test::Model model = test::transformer(3);
  const auto backend = make_reference_backend();
  const auto state = std::make_shared<State>(*backend);
  const Graph training = value_or_fail(dag::differentiate(model.graph, dag::op_table()));
  const auto trained = value_or_fail(Executor::create(
      std::make_shared<const Graph>(training), state,
      {.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::Sgd, .learning_rate = 0.5}}));
  const Bytes weights = state->bytes();
  const auto evaluating =
      value_or_fail(Executor::create(std::make_shared<const Graph>(model.graph), state, {}));
  EXPECT_EQ(state->bytes(), weights);
  for (const auto& [name, tensor] : model.weights)
    ok_or_fail(state->write(dag::of_initializer(name), tensor));

  const auto loss_of = [&](Executor& executor) {
    const auto microbatch = value_or_fail(executor.make_microbatch());
    microbatch->context = kContext;
    for (const auto& [name, tensor] : model.inputs) ok_or_fail(executor.set_input(*microbatch, name, tensor));
    ok_or_fail(executor.run(*microbatch));
    return to_doubles(
        value_or_fail(executor.value(*microbatch, executor.graph().find_output(OutputRole::Loss)->value)))[0];
  };
  const double before = loss_of(*trained);
  EXPECT_EQ(loss_of(*evaluating), before);
  ok_or_fail(trained->update({.step = 1, .learning_rate = 0.5}));
  const double after = loss_of(*evaluating);
  EXPECT_LT(after, before);
  EXPECT_EQ(loss_of(*trained), after);
}

}  // namespace
}  // namespace weft::peer
