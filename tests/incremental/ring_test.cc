// Rings of stages against one machine: each text has its bits, whatever is lost, late or cancelled in
// between. And mistakes planted in a stage, each of which has to be seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "peer/backend/cpu/cpu_backend.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"
#include "tests/incremental/ring_world.h"

namespace weft::incremental::testing {
namespace {

using serve::Finish;
using serve::Pass;
using serve::PassPiece;
using serve::Request;
using serve::RingEntry;
using serve::RingStage;

constexpr int64_t kVocabulary = 29;

// A model of four layers: nine parts, the odd ones attend.
class RingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
    ASSERT_TRUE(backend);
    backend_ = std::move(*backend);
    const std::vector<Form> forms{{.name = "learnt", .layers = 4},
                                  {.name = "shared keys",
                                   .positions = Positions::Halves,
                                   .heads = Heads::Expanded,
                                   .layers = 4,
                                   .shares_keys = true}};
    for (const Form& form : forms) {
      models_.push_back(std::make_unique<Model>(make_model(form)));
      const auto incremental = derive(*models_.back());
      ASSERT_TRUE(incremental) << incremental.error().message;
      pools_.push_back(std::make_unique<Pool>(*models_.back(), *incremental, *backend_));
    }
  }
  Pool& pool(size_t i = 0) { return *pools_[i]; }

  std::unique_ptr<peer::Backend> backend_;
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::unique_ptr<Pool>> pools_;
};

Request random_request(Rng& rng, int64_t tokens_max) {
  Request request;
  for (uint64_t left = 1 + rng.below(40); left > 0; --left)
    request.prompt.push_back(static_cast<int64_t>(rng.below(kVocabulary)));
  request.tokens_max = 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(tokens_max)));
  request.sampling = {.temperature = 0.8, .top_p = 0.95, .seed = rng.next_u64(), .alternatives = kVocabulary};
  if (rng.below(4) == 0) request.ends = {static_cast<int64_t>(rng.below(kVocabulary))};
  return request;
}
std::vector<Request> random_requests(Rng& rng, uint64_t count, int64_t tokens_max = 12) {
  std::vector<Request> requests;
  while (requests.size() < count) requests.push_back(random_request(rng, tokens_max));
  return requests;
}

const std::vector<std::vector<uint32_t>> kCuts{{}, {3, 6}, {2, 4, 7}, {1, 3, 5, 8}};

serve::RingOptions random_options(Rng& rng, size_t passes) {
  serve::RingOptions options;
  options.rows_max = 4 + static_cast<int64_t>(rng.below(13));
  options.passes_max = passes;
  options.sequences_max = 1 + rng.below(8);
  options.positions_max = 96 * static_cast<int64_t>(1 + rng.below(8));
  options.prompt_rows = 1 + static_cast<int64_t>(rng.below(8));
  return options;
}

TEST_F(RingTest, GivesTheTextOfOneMachine) {
  for (uint64_t seed = 0; seed < 128; ++seed) {
    Rng rng(seed, 1);
    WorldOptions options{.cuts = kCuts[seed % 4], .ring = random_options(rng, 1 + seed / 4 % 4)};
    options.loss = static_cast<Loss>(seed / 16 % 4);
    World world(pool(seed % 2), random_requests(rng, 1 + rng.below(8)), options, seed);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
}

// More sequences than passes: as many are under way as may be, and each has its share of what is generated.
TEST_F(RingTest, KeepsAllPassesUnderWay) {
  for (size_t passes = 1; passes <= 4; ++passes) {
    Rng rng(passes, 2);
    std::vector<Request> requests = random_requests(rng, 6);
    for (Request& request : requests) {
      request.prompt.resize(1);
      request.tokens_max = 40;
      request.ends.clear();
    }
    WorldOptions options{.cuts = kCuts[3], .ring = {.passes_max = passes, .positions_max = 6 * 96}};
    options.cancels = false;
    int64_t largest = 0;
    options.run_stage = [&](RingStage& stage, const Pass& pass) {
      if (pass.number > 40) largest = std::max(largest, serve::row_count(pass.pieces));
      return stage.run(pass);
    };
    World world(pool(), requests, options, passes);
    EXPECT_EQ(world.run(), "");
    EXPECT_EQ(world.most_under_way(), passes);
    EXPECT_LE(largest, static_cast<int64_t>((requests.size() + passes - 1) / passes));
  }
}

// So does one request alone, while its prompt is computed.
TEST_F(RingTest, APromptIsInSeveralPasses) {
  Rng rng(1, 4);
  Request request = random_request(rng, 3);
  request.prompt.resize(60, 5);
  WorldOptions options{.cuts = kCuts[3], .ring = {.rows_max = 8, .passes_max = 4, .positions_max = 96}};
  options.cancels = false;
  World world(pool(), {request}, options, 1);
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(world.most_under_way(), 4u);
}

// A stage with a mistake. It hides it from the entry: what goes on has the pieces that came.
class Mistake {
 public:
  virtual ~Mistake() = default;
  Result<Pass> run(RingStage& stage, const Pass& pass) {
    Pass changed = pass;
    change(changed);
    happened_ = happened_ || changed.pieces != pass.pieces || rows_changed_;
    Pass out = pass;
    if (!changed.pieces.empty()) {
      WEFT_TRY(out, stage.run(changed));
    }
    out.pieces = pass.pieces;
    return out;
  }
  bool happened() const { return happened_; }

 protected:
  virtual void change(Pass& pass) = 0;
  bool happened_ = false, rows_changed_ = false;
};

class EndNotPassedOn final : public Mistake {
  void change(Pass& pass) override {
    if (happened_) return;
    std::erase_if(pass.pieces, [](const PassPiece& piece) { return piece.ends(); });
  }
};

class WrongSequence final : public Mistake {
  void change(Pass& pass) override {
    std::vector<PassPiece*> going_on;
    for (PassPiece& piece : pass.pieces)
      if (!piece.ends()) going_on.push_back(&piece);
    if (happened_ || going_on.size() < 2) return;
    std::swap(going_on[0]->sequence, going_on[1]->sequence);
  }
};

// The rows of the pass before, where they have the same form.
class StaleRows final : public Mistake {
  void change(Pass& pass) override {
    const serve::RowTensors fresh = pass.rows;
    const bool fits = std::equal(fresh.begin(), fresh.end(), last_.begin(), last_.end(),
                                 [](auto& a, auto& b) { return a.second.spec() == b.second.spec(); });
    if (!rows_changed_ && fits && !fresh.empty()) {
      pass.rows = last_;
      rows_changed_ = true;
    }
    last_ = fresh;
  }
  serve::RowTensors last_;
};

// What comes anew from its beginning is put behind what was there.
class NotCutBack final : public Mistake {
  void change(Pass& pass) override {
    for (PassPiece& piece : pass.pieces) {
      int64_t& length = lengths_[piece.sequence];
      if (!piece.ends() && piece.first < length && length + piece.count <= 96) piece.first = length;
      length = piece.first + piece.count;
    }
  }
  std::map<uint64_t, int64_t> lengths_;
};

class MistakeTest : public RingTest {
 protected:
  // In the stage behind the entry, in rings of three.
  template <typename M>
  void expect_seen(Loss loss = Loss::None) {
    int happened = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Rng rng(seed, 3);
      WorldOptions options{.cuts = kCuts[2], .ring = random_options(rng, 1 + seed % 4)};
      options.ring.positions_max = 96 * 8;
      options.cancels = false;
      options.loss = loss;
      M mistake;
      const RingStage* wrong = nullptr;  // whichever is first reached
      options.run_stage = [&](RingStage& stage, const Pass& pass) {
        if (wrong == nullptr) wrong = &stage;
        return &stage == wrong ? mistake.run(stage, pass) : stage.run(pass);
      };
      std::vector<Request> requests = random_requests(rng, 2 + rng.below(7), 20);
      // What makes no difference cannot be seen: the first position twice, as long as it looks at itself
      // alone; and other logits of a token that ends a text, and so is not told.
      for (Request& request : requests) {
        if (request.prompt.size() == 1) request.prompt.push_back((request.prompt[0] + 1) % kVocabulary);
        request.ends.clear();
      }
      World world(pool(seed % 2), requests, options, seed);
      const std::string fault = world.run();
      happened += mistake.happened() ? 1 : 0;
      EXPECT_EQ(fault.empty(), !mistake.happened()) << "seed " << seed << ": " << fault;
    }
    EXPECT_GE(happened, 50);
  }
};

TEST_F(MistakeTest, AnEndThatIsNotPassedOn) { expect_seen<EndNotPassedOn>(); }
TEST_F(MistakeTest, AWrongSequence) { expect_seen<WrongSequence>(); }
TEST_F(MistakeTest, RowsOfThePassBefore) { expect_seen<StaleRows>(); }
TEST_F(MistakeTest, ACacheThatIsNotCutBack) { expect_seen<NotCutBack>(Loss::Passes); }

// A ring of two, by hand.
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
  make({.sequences_max = 2, .positions_max = 160});
  const auto pass = [&](uint64_t number, const std::vector<PassPiece>& pieces) {
    Pass made{.number = number, .pieces = pieces};
    const auto& edges = stage_->edges_in();
    for (const auto& edge : std::span(edges).subspan(1))
      made.rows.emplace(edge.name, dag::Tensor({edge.dtype, {serve::row_count(pieces), edge.width}}));
    return made;
  };
  const std::string full(to_string(ErrorCode::ResourceExhausted));
  EXPECT_EQ(code(stage_->run(pass(1, {{1, 0, 1, 0, 96}}))), "fine");
  EXPECT_EQ(stage_->positions(), 96);
  EXPECT_EQ(code(stage_->run(pass(2, {{2, 0, 1, 0, 65}}))), full);
  EXPECT_EQ(code(stage_->run(pass(2, {{2, 0, 1, 0, 64}}))), "fine");
  EXPECT_EQ(code(stage_->run(pass(3, {{3, 0, 1, 0, 0}}))), full);
  EXPECT_EQ(code(stage_->run(pass(3, {{1}, {3, 0, 1, 0, 96}}))), "fine");  // in place of an ended one
  EXPECT_EQ(stage_->sequences(), 2u);
  EXPECT_EQ(stage_->positions(), 160);
  EXPECT_EQ(pool().sequences(), 2u);
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

// Fails when it is told to.
class Failing final : public serve::Stage {
 public:
  Failing(std::unique_ptr<serve::Stage> stage, std::optional<ErrorCode>& error, size_t& range)
      : stage_(std::move(stage)), error_(error), range_(range) {}
  Result<serve::RowTensors> run(size_t range, std::span<const PassPiece> pieces,
                                const serve::RowTensors& rows) override {
    if (error_ && range == range_) return fail(*std::exchange(error_, std::nullopt), "planted");
    return stage_->run(range, pieces, rows);
  }
  void end(uint64_t sequence) override { stage_->end(sequence); }
  size_t sequences() const override { return stage_->sequences(); }
  Bytes bytes_of(int64_t positions) const override { return stage_->bytes_of(positions); }

 private:
  std::unique_ptr<serve::Stage> stage_;
  std::optional<ErrorCode>& error_;
  size_t& range_;
};

TEST_F(RefusalTest, AnErrorOfRequestsEndsThemAndOneOfTheDeviceIsTold) {
  std::optional<ErrorCode> error;
  size_t range = 0;
  make({.sequences_max = 1, .positions_max = 960},
       std::make_unique<Failing>(pool().borrow({{0, 3}, {6, 9}}), error, range));
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
