#include "plan/predict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "plan/model.h"
#include "plan/plan.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using std::chrono::milliseconds;

Pipeline two_segments_each(uint32_t stages, Duration forward, Duration backward, Bytes bytes) {
  Pipeline pipeline;
  for (uint32_t s = 0; s < stages; ++s) {
    StageWork stage;
    stage.segments = {{forward, false}, {backward, true}};
    pipeline.stages.push_back(stage);
    if (s > 0) pipeline.messages.push_back({s, 1, s - 1, 1, bytes});
    if (s + 1 < stages) pipeline.messages.push_back({s, 0, s + 1, 0, bytes});
  }
  return pipeline;
}
// As many devices as stages, in a row, every two with a link of their own.
class Row {
 public:
  explicit Row(uint32_t stages, const std::vector<LinkView>& links) : Row(stages) {
    for (uint32_t from = 0; from < stages; ++from)
      for (uint32_t to = 0; to < stages; ++to)
        if (from != to) cluster_.set_link(from, to, links[from * stages + to]);
  }
  Row(uint32_t stages, LinkView between, double uplink = kUnlimited, double downlink = kUnlimited)
      : Row(stages) {
    std::vector<DeviceView> devices(stages);
    for (DeviceView& device : devices) device.uplink = uplink, device.downlink = downlink;
    cluster_ = ClusterView(std::move(devices));
    cluster_.set_between(0, 0, between);
  }

  PredictRequest ask(const Pipeline& pipeline, uint32_t microbatches, std::vector<uint32_t> in_flight) const {
    return {.pipeline = &pipeline,
            .cluster = &cluster_,
            .devices = devices_,
            .microbatches = microbatches,
            .in_flight = std::move(in_flight)};
  }
  ClusterView& cluster() { return cluster_; }
  void limit_lines(Rng& rng) {
    const auto line = [&] { return rng.below(2) == 0 ? 1e9 * (0.05 + rng.uniform()) : kUnlimited; };
    for (size_t i = 0; i < devices_.size(); ++i) cluster_.set_lines(i, line(), line());
  }

 private:
  explicit Row(uint32_t stages) : cluster_(std::vector<DeviceView>(stages)), devices_(stages) {
    std::iota(devices_.begin(), devices_.end(), 0u);
  }
  ClusterView cluster_;
  std::vector<uint32_t> devices_;
};
std::vector<uint32_t> one_forward_one_backward(uint32_t stages) {
  std::vector<uint32_t> in_flight;
  for (uint32_t s = 0; s < stages; ++s) in_flight.push_back(stages - s);
  return in_flight;
}

TEST(Predict, OneStageIsTheSumOfItsWork) {
  Pipeline pipeline = two_segments_each(1, milliseconds(2), milliseconds(4), {0});
  pipeline.stages[0].update = milliseconds(5);
  const Prediction predicted = predict(Row(1, LinkView{}).ask(pipeline, 8, {1}));
  EXPECT_EQ(predicted.step, milliseconds(8 * 6 + 5));
  EXPECT_EQ(predicted.busy[0], milliseconds(8 * 6 + 5));
}

TEST(Predict, EqualStagesWithoutLinksTakeTheBoundOf1F1B) {
  for (const uint32_t stages : {2u, 3u, 4u, 8u})
    for (const uint32_t microbatches : {1u, 4u, 16u}) {
      const Pipeline pipeline = two_segments_each(stages, milliseconds(1), milliseconds(2), {0});
      const Prediction predicted = predict(
          Row(stages, {1e15, Duration{}}).ask(pipeline, microbatches, one_forward_one_backward(stages)));
      EXPECT_EQ(predicted.step, milliseconds(3 * (microbatches + stages - 1)))
          << stages << " stages, " << microbatches << " microbatches";
    }
}

TEST(Predict, ALinkAddsLatencyAndTransfer) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(2), {1000});
  const Row row(2, LinkView{1e5, milliseconds(20)});  // 10 ms a message
  const Prediction predicted = predict(row.ask(pipeline, 1, {2, 1}));
  EXPECT_EQ(predicted.step, milliseconds(1 + 30 + 3 + 30 + 2));
  EXPECT_EQ(predicted.sending[0].busy, milliseconds(10));
}

TEST(Predict, ALinkCarriesOneMessageAfterTheOther) {
  Pipeline pipeline;
  pipeline.stages.resize(2);
  pipeline.stages[0].segments = {{milliseconds(1), false}};
  pipeline.stages[1].segments = {{milliseconds(1), false}};
  pipeline.messages = {{0, 0, 1, 0, {1000}}};
  const Row row(2, LinkView{1e5, Duration{}});
  const Prediction predicted = predict(row.ask(pipeline, 100, {4, 4}));
  EXPECT_GE(predicted.step, milliseconds(1000));  // 10 ms for each
  EXPECT_LE(predicted.step, milliseconds(1002));
}

TEST(Predict, MoreInFlightHidesLatency) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(2), {10});
  const Row row(2, LinkView{1e9, milliseconds(20)});
  const Duration few = predict(row.ask(pipeline, 32, {2, 1})).step;
  const Duration many = predict(row.ask(pipeline, 32, {16, 15})).step;
  EXPECT_LT(seconds(many), 0.5 * seconds(few));
}

TEST(Predict, ManyMicrobatchesAreExtrapolated) {
  const Pipeline pipeline = two_segments_each(4, milliseconds(1), milliseconds(2), {0});
  const Row row(4, LinkView{1e15, Duration{}});
  const Prediction predicted = predict(row.ask(pipeline, 5000, {4, 3, 2, 1}));
  EXPECT_NEAR(seconds(predicted.step), 3e-3 * 5003, 3e-3);
  EXPECT_TRUE(predicted.order.empty());
}

TEST(Predict, TheFixedOrderOfAPredictionGivesTheSameStep) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    const auto stages = static_cast<uint32_t>(2 + rng.below(4));
    Pipeline pipeline =
        two_segments_each(stages, Duration(1 + rng.below(1000)), Duration(1 + rng.below(2000)),
                          {static_cast<int64_t>(rng.below(3000))});
    std::vector<LinkView> links(size_t{stages} * stages);
    for (LinkView& link : links) link = {1e9 * (0.1 + rng.uniform()), Duration(rng.below(3000))};
    Row row(stages, links);
    row.limit_lines(rng);
    PredictRequest request =
        row.ask(pipeline, static_cast<uint32_t>(1 + rng.below(12)), one_forward_one_backward(stages));
    if (rng.below(3) == 0) request.norm_round_trip = Duration(rng.below(5000));
    const Prediction predicted = predict(request);
    request.order = &predicted.order;
    EXPECT_EQ(predict(request).step, predicted.step);
  }
}

// Law 6, on cuts of real graphs.
TEST(Predict, MoreBandwidthNeverLengthensTheStepOfAFixedPlan) {
  for (const std::string& name : test::kAllGraphs) {
    const dag::Graph graph = test::training_graph(name, 1);
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed));
      Rng rng(seed, 2);
      const auto count = static_cast<uint32_t>(2 + rng.below(3));
      const PlanRequest wanted{.graph = &graph,
                               .microbatches = static_cast<uint32_t>(1 + rng.below(8)),
                               .stages = count,
                               .optimizer_slots = 1,
                               .cluster = test::random_cluster(rng, count)};
      const auto plan = make_plan(wanted);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      ClusterView cluster = wanted.cluster;
      std::vector<StageDevice> devices;
      PredictRequest request;
      for (const StagePlan& stage : plan->stages) {
        devices.push_back({wanted.cluster.devices()[stage.devices[0]].rates, 0});
        request.in_flight.push_back(stage.microbatches_in_flight);
        request.devices.push_back(stage.devices[0]);
      }
      const Pipeline pipeline =
          make_pipeline(make_model(graph), plan->stage_of_op, devices,
                        {.microbatches = wanted.microbatches, .optimizer_slots = wanted.optimizer_slots})
              .value();
      request.pipeline = &pipeline;
      request.cluster = &cluster;
      request.microbatches = wanted.microbatches;
      const Prediction predicted = predict(request);
      EXPECT_EQ(predicted.step, plan->predicted_step);
      request.order = &predicted.order;
      Duration last = predicted.step;
      for (int round = 0; round < 12; ++round) {
        for (uint32_t i = 0; i < count; ++i) {
          const DeviceView& device = cluster.devices()[i];
          if (rng.below(2) == 0)
            cluster.set_lines(i, device.uplink * (1 + rng.uniform()), device.downlink * (1 + rng.uniform()));
          for (uint32_t k = 0; k < count; ++k) {
            LinkView link = cluster.path(i, k);
            if (rng.below(2) == 0) link.bytes_per_second *= 1 + rng.uniform();
            cluster.set_link(i, k, link);
          }
        }
        const Duration step = predict(request).step;
        EXPECT_LE(step, last);
        last = step;
      }
    }
  }
}

// Both neighbours of the stage in the middle share its lines; the ends have one neighbour each.
TEST(Predict, AStageInTheMiddleHasItsUplinkOnce) {
  const Pipeline pipeline = two_segments_each(3, milliseconds(1), milliseconds(1), {1000});
  const uint32_t microbatches = 50;
  Row row(3, LinkView{1e9, {}});
  const std::vector<uint32_t> in_flight = {50, 50, 50};
  row.cluster().set_lines(1, 1e5, kUnlimited);  // 10 ms a message
  const Prediction middle = predict(row.ask(pipeline, microbatches, in_flight));
  EXPECT_EQ(middle.uplink[1], milliseconds(2 * 10 * microbatches));
  EXPECT_GE(middle.step, milliseconds(2 * 10 * microbatches));
  EXPECT_LE(middle.step, milliseconds(2 * 10 * microbatches + 50));
  row.cluster().set_lines(1, kUnlimited, 1e5);
  EXPECT_GE(predict(row.ask(pipeline, microbatches, in_flight)).step, milliseconds(2 * 10 * microbatches));
  row.cluster().set_lines(1, kUnlimited, kUnlimited);
  row.cluster().set_lines(0, 1e5, kUnlimited);
  const Prediction end = predict(row.ask(pipeline, microbatches, in_flight));
  EXPECT_GE(end.step, milliseconds(10 * microbatches));
  EXPECT_LE(end.step, milliseconds(10 * microbatches + 50));
}

// What a line and a link hold up at the same time is held up once.
TEST(Predict, LinesAndLinkWorkAtTheSameTime) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(1), {1000});
  const Row alone(2, LinkView{1e5, milliseconds(7)});
  const Row lines(2, LinkView{1e5, milliseconds(7)}, 1e5, 1e5);
  const Duration step = predict(alone.ask(pipeline, 1, {2, 1})).step;
  EXPECT_EQ(step, milliseconds(1 + 17 + 2 + 17 + 1));
  EXPECT_EQ(predict(lines.ask(pipeline, 1, {2, 1})).step, step);
  const Row slow_line(2, LinkView{1e5, milliseconds(7)}, 5e4);
  EXPECT_EQ(predict(slow_line.ask(pipeline, 1, {2, 1})).step, step + milliseconds(20));
}

TEST(Predict, ANormCostsARoundTripAndABarrier) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(2), {0});
  const Row row(2, LinkView{1e15, {}});
  PredictRequest request = row.ask(pipeline, 4, {2, 1});
  const Duration without = predict(request).step;
  request.norm_round_trip = milliseconds(40);
  const Duration with = predict(request).step;
  EXPECT_EQ(with, without + milliseconds(40));
}

TEST(Predict, ATimelineHasEveryTaskOfAStepOnceAndNoneAtOnce) {
  const Pipeline pipeline = two_segments_each(3, milliseconds(1), milliseconds(2), {1000});
  const Row row(3, LinkView{1e6, milliseconds(1)});
  const Timeline timeline = predict(row.ask(pipeline, 6, {3, 2, 1})).timeline;
  ASSERT_EQ(timeline.stages.size(), 3u);
  EXPECT_EQ(timeline.microbatches, 6u);
  Duration last_forward{};
  for (const auto& tasks : timeline.stages) {
    EXPECT_EQ(tasks.size(), 12u);
    for (size_t i = 1; i < tasks.size(); ++i) EXPECT_GE(tasks[i].begin, tasks[i - 1].end);
    for (const TimelineTask& task : tasks)
      if (!task.is_backward && task.microbatch == 0) {
        EXPECT_GE(task.begin, last_forward);
        last_forward = task.end;
      }
  }
}

// ---- the critical path ----

// Links and lines of any speed, data too, a norm at times.
class Critical {
 public:
  explicit Critical(uint64_t seed) : rng_(seed, 3), stages_(static_cast<uint32_t>(2 + rng_.below(4))) {
    for (uint32_t s = 0; s < stages_; ++s) {
      StageWork stage;
      stage.segments = {{duration(2000), false}, {duration(2000), true}};
      stage.update = duration(500);
      if (rng_.below(3) == 0) stage.data = {static_cast<int64_t>(rng_.below(2000))};
      pipeline_.stages.push_back(stage);
      if (s > 0) pipeline_.messages.push_back({s, 1, s - 1, 1, bytes()});
      if (s + 1 < stages_) pipeline_.messages.push_back({s, 0, s + 1, 0, bytes()});
    }
    std::vector<LinkView> links(size_t{stages_} * stages_);
    for (LinkView& link : links) link = {1e9 * (0.1 + rng_.uniform()), duration(2000)};
    row_.emplace(stages_, links);
    row_->limit_lines(rng_);
    request_ =
        row_->ask(pipeline_, static_cast<uint32_t>(1 + rng_.below(12)), one_forward_one_backward(stages_));
    if (rng_.below(3) == 0) request_.norm_round_trip = duration(3000);
    request_.records_path = true;
  }

  PredictRequest& request() { return request_; }
  // Whatever this is takes half as long, or next to nothing.
  void shorten(CriticalPart::Kind kind, uint32_t stage, uint32_t to_stage) {
    StageWork& work = pipeline_.stages[stage];
    ClusterView& cluster = row_->cluster();
    const DeviceView device = cluster.devices()[stage];
    const int64_t by = rng_.below(2) == 0 ? 2 : 1000;
    switch (kind) {
      case CriticalPart::Kind::Compute:
        for (Segment& segment : work.segments) segment.compute /= by;
        break;
      case CriticalPart::Kind::Update:
        work.update /= by;
        break;
      case CriticalPart::Kind::Norm:
        if (request_.norm_round_trip) *request_.norm_round_trip /= by;
        break;
      case CriticalPart::Kind::Uplink:
        cluster.set_lines(stage, device.uplink * static_cast<double>(by), device.downlink);
        break;
      case CriticalPart::Kind::Downlink:
        cluster.set_lines(stage, device.uplink, device.downlink * static_cast<double>(by));
        break;
      case CriticalPart::Kind::Data:
        work.data.value = (work.data.value + by - 1) / by;
        break;
      case CriticalPart::Kind::Link: {
        LinkView link = cluster.path(stage, to_stage);
        link.bytes_per_second *= static_cast<double>(by);
        link.latency /= by;
        cluster.set_link(stage, to_stage, link);
      }
    }
  }
  std::vector<CriticalShare> all() const {
    using Kind = CriticalPart::Kind;
    std::vector<CriticalShare> found = {{Kind::Norm, 0, 0, {}}};
    for (uint32_t s = 0; s < stages_; ++s) {
      for (const Kind kind : {Kind::Compute, Kind::Update, Kind::Uplink, Kind::Downlink, Kind::Data})
        found.push_back({kind, s, s, {}});
      if (s + 1 < stages_) found.push_back({Kind::Link, s, s + 1, {}});
      if (s > 0) found.push_back({Kind::Link, s, s - 1, {}});
    }
    return found;
  }

 private:
  Duration duration(uint64_t most) { return Duration(static_cast<int64_t>(1 + rng_.below(most))); }
  Bytes bytes() { return {static_cast<int64_t>(rng_.below(3000))}; }

  Rng rng_;
  uint32_t stages_;
  Pipeline pipeline_;
  std::optional<Row> row_;
  PredictRequest request_;
};
bool is_same(const CriticalShare& a, const CriticalShare& b) {
  return a.kind == b.kind && a.stage == b.stage && a.to_stage == b.to_stage;
}
bool has(const std::vector<CriticalShare>& shares, const CriticalShare& one) {
  return std::any_of(shares.begin(), shares.end(), [&](const auto& share) { return is_same(share, one); });
}

TEST(CriticalPath, ItsPartsAddUpToTheStep) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Critical random(seed);
    const Prediction predicted = predict(random.request());
    Duration all{};
    for (const CriticalShare& share : predicted.critical) {
      EXPECT_TRUE(has(random.all(), share));
      all += share.waited;
    }
    EXPECT_EQ(all, predicted.step);
    Duration end{};
    for (const CriticalPart& part : predicted.timeline.critical) {
      EXPECT_EQ(part.begin, end) << "each part begins when the one before ends";
      end = part.end;
    }
  }
}

TEST(CriticalPath, ShorteningWhatIsNotOnItChangesNothingInThatOrder) {
  uint32_t kept = 0, shortened = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    const Prediction predicted = predict(Critical(seed).request());
    for (const CriticalShare& one : Critical(seed).all()) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + describe({&one, 1}));
      Critical changed(seed);
      changed.shorten(one.kind, one.stage, one.to_stage);
      changed.request().order = &predicted.order;
      const Duration step = predict(changed.request()).step;
      EXPECT_LE(step, predicted.step);
      if (has(predicted.critical, one)) {
        shortened += step < predicted.step;
        continue;
      }
      // Both flows of a downlink are one line to whoever makes it faster.
      const bool is_line = one.kind == CriticalPart::Kind::Downlink;
      if (is_line && has(predicted.critical, {CriticalPart::Kind::Data, one.stage, one.stage, {}})) continue;
      EXPECT_EQ(step, predicted.step);
      ++kept;
    }
  }
  EXPECT_GT(kept, 500u);
  EXPECT_GT(shortened, 500u);
}

TEST(CriticalPath, NamesTheSlowLink) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(2), {1000});
  const Row row(2, LinkView{1e5, milliseconds(20)});  // 30 ms a message
  PredictRequest request = row.ask(pipeline, 1, {2, 1});
  request.records_path = true;
  const Prediction predicted = predict(request);
  ASSERT_EQ(predicted.critical.size(), 4u);
  EXPECT_EQ(predicted.critical[0].kind, CriticalPart::Kind::Link);
  EXPECT_EQ(predicted.critical[0].waited, milliseconds(30));
  EXPECT_EQ(
      describe(predicted.critical),
      "the link from stage 1 to stage 2 45%, the link from stage 2 to stage 1 45%, stage 1 computes 5%, "
      "stage 2 computes 5%");
}

TEST(CriticalPath, IsToldByKindWhereNothingIsMostOfIt) {
  using Kind = CriticalPart::Kind;
  std::vector<CriticalShare> shares;
  for (uint32_t s = 0; s < 10; ++s) shares.push_back({Kind::Link, s, s + 1, milliseconds(s == 7 ? 16 : 6)});
  for (uint32_t s = 0; s < 10; ++s) shares.push_back({Kind::Compute, s, s, milliseconds(3)});
  EXPECT_EQ(describe(shares),
            "links 70% (the link from stage 8 to stage 9 16%), computing 30% (stage 1 computes 3%)");
}

TEST(CriticalPath, OfManyMicrobatchesStillAddsUpToTheStep) {
  const Pipeline pipeline = two_segments_each(3, milliseconds(1), milliseconds(2), {1000});
  const Row row(3, LinkView{1e6, milliseconds(1)});
  PredictRequest request = row.ask(pipeline, 1000, {3, 2, 1});
  request.records_path = true;
  const Prediction predicted = predict(request);
  Duration all{};
  for (const CriticalShare& share : predicted.critical) all += share.waited;
  EXPECT_EQ(all, predicted.step);
}

// ---- what lines carry besides ----

TEST(Predict, DataTakeTheirShareOfADownlink) {
  Pipeline pipeline = two_segments_each(1, milliseconds(1), milliseconds(1), {0});
  pipeline.stages[0].data = {1000};
  const uint32_t microbatches = 50;
  const Row slow(1, LinkView{}, kUnlimited, 1e5);  // 10 ms a microbatch
  const Prediction predicted = predict(slow.ask(pipeline, microbatches, {1}));
  EXPECT_EQ(predicted.downlink[0], milliseconds(10 * microbatches));
  EXPECT_GE(predicted.step, milliseconds(10 * microbatches));
  EXPECT_LE(predicted.step, milliseconds(10 * microbatches + 2));
  const Row fast(1, LinkView{}, kUnlimited, 1e6);  // 1 ms: ahead of need
  EXPECT_LE(predict(fast.ask(pipeline, microbatches, {1})).step, milliseconds(2 * microbatches + 1));
}

TEST(Predict, CopiesTakeTheirShareOfAnUplink) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(1), {1000});
  const Row row(2, LinkView{1e9, {}}, 1e5);  // 10 ms a message
  PredictRequest request = row.ask(pipeline, 20, {20, 20});
  EXPECT_EQ(predict(request).uplink[0], milliseconds(20 * 10));
  request.copying = {5e4, 0};
  const Prediction predicted = predict(request);
  EXPECT_EQ(predicted.uplink[0], milliseconds(20 * 20));
  EXPECT_EQ(predicted.uplink[1], milliseconds(20 * 10));
  EXPECT_GE(predicted.step, milliseconds(20 * 20));
}

TEST(Predict, AStageHoldsNoMoreMicrobatchesThanItMay) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Critical random(seed);
    const Prediction predicted = predict(random.request());
    for (uint32_t s = 0; s < predicted.timeline.held.size(); ++s) {
      const auto& held = predicted.timeline.held[s];
      ASSERT_FALSE(held.empty());
      EXPECT_EQ(held.back().count, 0u) << "all are done";
      for (size_t i = 0; i < held.size(); ++i) {
        EXPECT_LE(held[i].count, random.request().in_flight[s]);
        if (i == 0) continue;
        EXPECT_LT(held[i - 1].at, held[i].at);
      }
    }
  }
}

TEST(Predict, TheStepAloneIsTheStepAndWhatIsGivenUpTakesAtLeastThatLong) {
  uint32_t given_up = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Critical random(seed);
    PredictRequest& request = random.request();
    const Duration step = predict(request).step;
    EXPECT_LE(least_step(request), step);
    request.records_path = false;
    EXPECT_EQ(predict(request).step, step);
    request.step_only = true;
    EXPECT_EQ(predict(request).step, step);
    for (const double part : {0.1, 0.5, 0.9, 0.99, 1.0, 1.01, 1.5, 1e12}) {
      // The nanosecond: the step itself is not given up.
      request.give_up_at = Duration(1 + static_cast<int64_t>(part * static_cast<double>(step.count())));
      const Duration told = predict(request).step;
      EXPECT_TRUE(*request.give_up_at > step ? told == step : told >= *request.give_up_at) << part;
      given_up += told != step;
    }
  }
  EXPECT_GT(given_up, 1000u) << "or this shows nothing";
}

}  // namespace
}  // namespace weft::plan
