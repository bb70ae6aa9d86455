// What a ring refuses, and what it makes of errors: a ring of two stages, by hand.
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "tests/incremental/ring_fixture.h"

namespace weft::incremental::testing {
namespace {

using serve::Finish;
using serve::Pass;
using serve::PassPiece;
using serve::Request;
using serve::RingEntry;
using serve::RingStage;

class RefusalTest : public RingTest {
 protected:
  void make(serve::RingOptions options, std::unique_ptr<serve::Stage> entry_stage = nullptr) {
    const std::vector<dag::PartRange> ends{{0, 3}, {6, 9}};
    const dag::PartRange middle{3, 6};
    if (!entry_stage) entry_stage = pool().borrow(ends);
    auto entry = RingEntry::create(pool().incremental(), ends, std::move(entry_stage), options);
    auto stage = RingStage::create(pool().incremental(), middle, pool().borrow({middle}), options);
    ASSERT_TRUE(entry && stage);
    entry_ = std::move(*entry);
    stage_ = std::move(*stage);
  }
  Pass begun() {
    auto step = entry_->next();
    EXPECT_TRUE(step && step->send);
    return step && step->send ? *step->send : Pass{};
  }
  // Until there is nothing to do.
  void run() {
    for (;;) {
      const auto step = entry_->next();
      ASSERT_TRUE(step);
      if (step->tick.idle) return;
      if (!step->send) continue;
      const auto out = stage_->run(*step->send);
      ASSERT_TRUE(out) << out.error().message;
      ASSERT_TRUE(entry_->finish(*out));
    }
  }
  // For the stage.
  Pass zeros(uint64_t number, const std::vector<PassPiece>& pieces) const {
    Pass made{.number = number, .pieces = pieces};
    const auto& edges = stage_->edges_in();
    for (const auto& edge : std::span(edges).subspan(1))
      made.rows.emplace(edge.name, dag::Tensor({edge.dtype, {serve::row_count(pieces), edge.width}}));
    return made;
  }
  static std::string code(const auto& result) {
    return result ? "fine" : std::string(to_string(result.error().code));
  }
  void expect_text(const Request& request, const Told& told) {
    const Told wanted = pool().on_one_machine({request})[0];
    EXPECT_TRUE(starts_with(wanted.draws, told.draws));
    EXPECT_EQ(told.draws.size(), wanted.draws.size());
    EXPECT_EQ(told.end, wanted.end);
  }

  std::unique_ptr<RingEntry> entry_;
  std::unique_ptr<RingStage> stage_;
};

const Request kRequest{
    .prompt = {1, 2, 3}, .tokens_max = 5, .sampling = {.seed = 7, .alternatives = kVocabulary}};
const std::string kInvalid(to_string(ErrorCode::InvalidArgument));

TEST_F(RefusalTest, APassThatDoesNotFitHarmsNothing) {
  make({.positions_max = 960});
  Told told;
  ASSERT_TRUE(entry_->add(kRequest, to(told)));
  const Pass first = begun();
  const Pass first_out = *stage_->run(first);
  EXPECT_EQ(code(stage_->run(first)), kInvalid);  // it has been
  Pass changed = first_out;
  changed.number = 99;
  EXPECT_EQ(code(entry_->finish(changed)), kInvalid);  // not under way
  changed = first_out;
  changed.pieces[0].logits = 0;
  EXPECT_EQ(code(entry_->finish(changed)), kInvalid);  // not what was sent
  changed = first_out;
  changed.rows.begin()->second = dag::Tensor({dag::DType::F32, {3, 1}});
  EXPECT_EQ(code(entry_->finish(changed)), kInvalid);  // of another form
  changed.rows.clear();
  EXPECT_EQ(code(entry_->finish(changed)), kInvalid);
  changed = first_out;
  changed.rows.emplace("more", dag::Tensor({dag::DType::F32, {3, 1}}));
  EXPECT_EQ(code(entry_->finish(changed)), kInvalid);
  EXPECT_EQ(code(entry_->finish(first_out)), "fine");
  EXPECT_EQ(code(entry_->finish(first_out)), kInvalid);  // it has been
  const Pass second = begun();
  changed = second;
  changed.rows.clear();
  EXPECT_EQ(code(stage_->run(changed)), kInvalid);
  changed = second;
  changed.pieces[0].first += 1;
  EXPECT_EQ(code(stage_->run(changed)), kInvalid);  // a position is left out
  changed = second;
  changed.pieces[0].sequence += 1;
  EXPECT_EQ(code(stage_->run(changed)), kInvalid);  // unknown, in its middle
  changed = second;
  changed.pieces[0].first = INT64_MAX;
  EXPECT_EQ(code(stage_->run(changed)), kInvalid);
  changed.pieces.clear();
  EXPECT_EQ(code(stage_->run(changed)), kInvalid);
  const auto second_out = stage_->run(second);
  ASSERT_TRUE(second_out) << second_out.error().message;
  EXPECT_EQ(code(entry_->finish(*second_out)), "fine");
  run();
  expect_text(kRequest, told);
}

TEST_F(RefusalTest, AStageKeepsNoMoreThanItMay) {
  make({.sequences_max = 2, .positions_max = 224});
  const std::string full(to_string(ErrorCode::ResourceExhausted));
  EXPECT_EQ(code(stage_->run(zeros(1, {{1, 0, 1, 0, 96}}))), "fine");
  EXPECT_EQ(stage_->positions(), 96);
  EXPECT_EQ(code(stage_->run(zeros(2, {{2, 0, 1, 0, 64}, {3, 0, 1, 0, 64}}))), full);  // one too many
  EXPECT_EQ(code(stage_->run(zeros(2, {{2, 0, 1, 0, 64}}))), "fine");
  EXPECT_EQ(code(stage_->run(zeros(3, {{2}, {3, 0, 1, 0, 96}, {4, 0, 1, 0, 64}}))), full);
  EXPECT_EQ(code(stage_->run(zeros(3, {{1}, {3, 0, 1, 0, 96}}))), "fine");  // in place of an ended one
  EXPECT_EQ(stage_->sequences(), 2u);
  EXPECT_EQ(stage_->positions(), 160);
  EXPECT_EQ(pool().sequences(), 2u);
}

TEST_F(RefusalTest, MorePositionsThanMayBe) {
  make({.positions_max = 159});
  EXPECT_EQ(code(stage_->run(zeros(1, {{1, 0, 1, 0, 96}}))), "fine");
  EXPECT_EQ(code(stage_->run(zeros(2, {{2, 0, 1, 0, 1}}))), to_string(ErrorCode::ResourceExhausted));
  EXPECT_EQ(stage_->positions(), 96);
  EXPECT_EQ(pool().sequences(), 1u);
}

TEST_F(RefusalTest, APassOutOfTurnWaits) {
  make({.rows_max = 2, .passes_max = 2, .positions_max = 960});
  Told told;
  ASSERT_TRUE(entry_->add(kRequest, to(told)));
  const Pass first = *stage_->run(begun());
  const Pass second = *stage_->run(begun());
  EXPECT_EQ(code(entry_->finish(second)), kInvalid);
  EXPECT_EQ(entry_->under_way(), 2u);
  EXPECT_EQ(code(entry_->finish(first)), "fine");
  EXPECT_EQ(code(entry_->finish(second)), "fine");
  run();
  expect_text(kRequest, told);
}

TEST_F(RefusalTest, NanEndsTheRequestThatItIsOf) {
  make({.positions_max = 960});
  Told spoilt, sound;
  ASSERT_TRUE(entry_->add(kRequest, to(spoilt)));
  ASSERT_TRUE(entry_->add(kRequest, to(sound)));
  Pass out = *stage_->run(begun());
  for (auto& [name, tensor] : out.rows)
    if (tensor.dtype() == dag::DType::F32)
      tensor.mutable_as<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code(entry_->finish(out)), "fine");
  EXPECT_EQ(spoilt.end, Finish::Failed);
  EXPECT_EQ(spoilt.status.error().code, ErrorCode::Corrupted);
  EXPECT_TRUE(spoilt.draws.empty());
  run();
  expect_text(kRequest, sound);
  EXPECT_EQ(pool().sequences(), 0u);
}

TEST_F(RefusalTest, AnErrorOfRequestsEndsThemAndOneOfTheDeviceIsTold) {
  std::optional<ErrorCode> error;
  size_t range = 0;
  make({.sequences_max = 1, .positions_max = 960},
       std::make_unique<Failing>(pool().borrow({{0, 3}, {6, 9}}), [&](size_t running) {
         return running == range ? std::exchange(error, std::nullopt) : std::nullopt;
       }));
  for (range = 0; range < 2; ++range) {
    Told first, second;
    ASSERT_TRUE(entry_->add(kRequest, to(first)));
    ASSERT_TRUE(entry_->add(kRequest, to(second)));
    error = ErrorCode::ResourceExhausted;
    run();
    EXPECT_EQ(first.end, Finish::Failed);
    EXPECT_EQ(first.status.error().code, ErrorCode::ResourceExhausted);
    expect_text(kRequest, second);
    EXPECT_EQ(pool().sequences(), 0u);
  }
  range = 0;
  error = ErrorCode::DeviceLost;
  Told told;
  ASSERT_TRUE(entry_->add(kRequest, to(told)));
  EXPECT_EQ(code(entry_->next()), to_string(ErrorCode::DeviceLost));
  EXPECT_FALSE(told.end);
  entry_->restart();
  run();
  expect_text(kRequest, told);
}

TEST_F(RefusalTest, CachesAreGrantedInPositions) {
  make({.positions_max = 128});
  std::vector<Told> told(3);
  for (Told& one : told) ASSERT_TRUE(entry_->add(kRequest, to(one)));
  EXPECT_EQ(entry_->serving(), 2u);
  EXPECT_EQ(entry_->waiting(), 1u);
  EXPECT_EQ(entry_->positions(), 128);
  run();
  for (const Told& one : told) expect_text(kRequest, one);
  make({.positions_max = 64});
  Request large = kRequest;
  large.tokens_max = 80;
  Told refused;
  const auto added = entry_->add(large, to(refused));
  ASSERT_FALSE(added);
  EXPECT_NE(added.error().message.find("the largest that fits has 64"), std::string::npos)
      << added.error().message;
}

// When nothing else is to be done, a pass goes round with the end alone.
TEST_F(RefusalTest, AnEndGoesRoundByItself) {
  make({.positions_max = 960});
  Told told;
  const auto id = entry_->add(kRequest, to(told));
  const Pass first = begun();
  entry_->cancel(*id);
  EXPECT_TRUE(entry_->next()->tick.idle);
  EXPECT_EQ(told.end, Finish::Cancelled);
  ASSERT_TRUE(entry_->finish(*stage_->run(first)));
  const Pass last = begun();
  EXPECT_EQ(last.pieces, std::vector<PassPiece>{{.sequence = *id}});
  EXPECT_EQ(serve::tensors_of(last, entry_->edges_out()).size(), 1u);
  const auto out = stage_->run(last);
  ASSERT_TRUE(out) << out.error().message;
  const auto tick = entry_->finish(*out);
  ASSERT_TRUE(tick);
  EXPECT_EQ(tick->rows, 0);
  EXPECT_TRUE(entry_->next()->tick.idle);
  EXPECT_EQ(pool().sequences(), 0u);
}

TEST_F(RefusalTest, RangesAndOptionsWithoutSense) {
  const auto entry = [&](const std::vector<dag::PartRange>& ranges, const serve::RingOptions& options) {
    return code(RingEntry::create(pool().incremental(), ranges, nullptr, options));
  };
  const auto stage = [&](dag::PartRange range, const serve::RingOptions& options) {
    return code(RingStage::create(pool().incremental(), range, nullptr, options));
  };
  const serve::RingOptions fine{.positions_max = 96};
  EXPECT_EQ(entry({{0, 9}}, fine), "fine");
  EXPECT_EQ(entry({}, fine), kInvalid);
  EXPECT_EQ(entry({{0, 8}}, fine), kInvalid);
  EXPECT_EQ(entry({{1, 3}, {6, 9}}, fine), kInvalid);
  EXPECT_EQ(entry({{0, 3}, {3, 9}}, fine), kInvalid);
  EXPECT_EQ(entry({{0, 6}, {3, 9}}, fine), kInvalid);
  EXPECT_EQ(entry({{0, 0}, {3, 9}}, fine), kInvalid);
  EXPECT_EQ(entry({{0, 2}, {9, 9}}, fine), kInvalid);
  EXPECT_EQ(stage({1, 8}, fine), "fine");
  EXPECT_EQ(stage({0, 3}, fine), kInvalid);
  EXPECT_EQ(stage({3, 9}, fine), kInvalid);
  EXPECT_EQ(stage({3, 3}, fine), kInvalid);
  for (const serve::RingOptions& options :
       {serve::RingOptions{}, serve::RingOptions{.rows_max = 0, .positions_max = 96},
        serve::RingOptions{.passes_max = 0, .positions_max = 96},
        serve::RingOptions{.sequences_max = size_t{1} << 60, .positions_max = 96},
        serve::RingOptions{.positions_max = INT64_MAX}})
    EXPECT_EQ(stage({1, 8}, options), kInvalid);
}

}  // namespace
}  // namespace weft::incremental::testing
