// What `weft join` and `weft peers` tell people.
#include <gtest/gtest.h>

#include "cli/job_table.h"
#include "cli/join_limits.h"
#include "cli/link_table.h"
#include "cli/peer_table.h"
#include "cli/peer_work.h"

namespace weft::cli {
namespace {

using std::chrono::seconds;

constexpr Machine kSmall{.processors = 2, .memory = {int64_t{24} << 30}};

TEST(JoinLimits, NobodyOffersMoreThanTheMachineHas) {
  const auto offer = [](const char* device, std::optional<Bytes> memory, std::optional<Bytes> host = {}) {
    return check_offer(*parse_device(device), {.device = memory, .host = host}, kSmall);
  };
  EXPECT_TRUE(offer("cpu", {}));
  EXPECT_TRUE(offer("cpu:2", Bytes{int64_t{24} << 30}));
  EXPECT_EQ(offer("cpu:64", {}).error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(offer("cpu:64", {}).error().message.find("has 2 processors"), std::string::npos);
  const Status much = offer("cpu", Bytes{int64_t{900} << 30});
  ASSERT_FALSE(much);
  EXPECT_NE(much.error().message.find("24.0 GiB"), std::string::npos) << much.error().message;
  EXPECT_FALSE(offer("cuda:0", Bytes{int64_t{80} << 30}, Bytes{int64_t{900} << 30}));
  EXPECT_TRUE(offer("cuda:0", Bytes{int64_t{80} << 30})) << "of its own memory its driver knows";
  EXPECT_TRUE(offer("null:rtx3080", Bytes{int64_t{900} << 30})) << "it computes nothing";
  EXPECT_TRUE(check_offer(*parse_device("cpu:64"), {.device = Bytes{int64_t{1} << 50}, .host = {}}, {}))
      << "of an unknown machine";
}

peer::PeerActivity at_work(uint64_t step) {
  return {.is_joined = true,
          .work = {{.job = 7,
                    .job_name = "resnet",
                    .submitter = "alice",
                    .seat = {1},
                    .stage_count = 4,
                    .is_ready = true,
                    .step = step}},
          .done = {.steps = step, .seconds_busy = 2.0 * static_cast<double>(step), .bytes_sent = step << 20}};
}

TEST(PeerWork, SaysWhatItIsAtAndForWhom) {
  EXPECT_EQ(
      describe(at_work(60)),
      "training stage 2 of 4 of job 7 (resnet) for alice, step 60; so far 60 steps in 2m 00s of computing, "
      "60.0 MiB sent");
  EXPECT_EQ(describe({.is_joined = true}),
            "idle: no job needs this peer now; so far 0 steps in 0s of computing, "
            "0 B sent");
  EXPECT_TRUE(describe({}).starts_with("the broker is not there"));
}

TEST(PeerWork, ALineWhenItBeginsOneAMinuteAndOneWhenItEnds) {
  PeerWork work;
  Instant now{};
  EXPECT_TRUE(work.lines({}, now).empty()) << "the session says that the broker is not there";
  ASSERT_EQ(work.lines({.is_joined = true}, now).size(), 1u);
  EXPECT_TRUE(work.lines({.is_joined = true}, now).empty()) << "said once";
  const auto begun = work.lines(at_work(1), now);
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(begun[0], "info at_work job=7 name=\"resnet\" for=\"alice\" stage=\"2 of 4\" step=1");
  now += seconds(59);
  EXPECT_TRUE(work.lines(at_work(30), now).empty());
  now += seconds(1);
  const auto going_on = work.lines(at_work(31), now);
  ASSERT_EQ(going_on.size(), 1u);
  EXPECT_TRUE(going_on[0].starts_with("info working job=7")) << going_on[0];
  const auto idle = work.lines({.is_joined = true, .done = at_work(31).done}, now);
  ASSERT_EQ(idle.size(), 1u);
  EXPECT_NE(idle[0].find("31 steps"), std::string::npos) << idle[0];
  work.begin_visit();
  (void)work.lines(at_work(9), now);
  EXPECT_EQ(work.done().steps, 40u) << "of both visits";
}

TEST(PeerWork, ItsFiguresAreOfTheJobsOfNow) {
  const Metrics metrics = peer_metrics(at_work(5), at_work(40).done, /*is_away=*/false);
  EXPECT_EQ(metrics.value("weft_job_step", {{"job", "7"}}), 5);
  EXPECT_EQ(metrics.value("weft_peer_steps_total"), 40);
  EXPECT_EQ(metrics.value("weft_peer_joined"), 1);
  EXPECT_TRUE(peer_metrics({}, {}, true).families().at("weft_job_step").samples.empty());
}

proto::PeerStatus peer(const char* name, const char* state, double seconds_since) {
  proto::PeerStatus status;
  status.name = name;
  status.state = state;
  status.seconds_since_heard = seconds_since;
  return status;
}

bool has(const std::vector<std::string>& lines, const std::string& text) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(text) != line.npos; });
}

TEST(PeerTable, WhoHasBeenGoneForLongIsCountedAlone) {
  proto::PeerList list{.peers = {peer("here", "pool", 1), peer("old", "gone", 5000),
                                 peer("away", "paused", 5000), peer("fresh", "left", 60)}};
  list.peers[2].reason = "on battery";
  const auto lines = peer_table(list, /*all=*/false);
  EXPECT_EQ(lines.size(), 5u);
  EXPECT_FALSE(has(lines, "old"));
  EXPECT_TRUE(has(lines, "on battery"));
  EXPECT_EQ(lines.back(), "1 more has been gone for over an hour: weft peers --all");
  EXPECT_TRUE(has(peer_table(list, /*all=*/true), "old"));
}

TEST(PeerTable, SaysHowItWasReachedAndWhatAnAdminMayKnow) {
  proto::PeerList list{.peers = {peer("a", "active", 1), peer("b", "pool", 1)}};
  list.peers[0].reach = proto::Reach::Closed;
  list.peers[1].reach = proto::Reach::Untried;
  EXPECT_FALSE(has(peer_table(list, false), "JOBS"));
  list.peers[0].jobs = {3, 5};
  list.disk_size = {int64_t{100} << 30};
  list.disk_free = {int64_t{40} << 30};
  list.blob_bytes = {int64_t{2} << 30};
  const auto lines = peer_table(list, false);
  EXPECT_TRUE(has(lines, "JOBS"));
  EXPECT_TRUE(has(lines, "3,5"));
  EXPECT_TRUE(has(lines, "by relay (port closed)"));
  EXPECT_TRUE(has(lines, "untried"));
  EXPECT_EQ(lines.back(), "the broker's disk: 2.0 GiB of blobs, 40.0 GiB of 100.0 GiB free");
  EXPECT_TRUE(has(peer_events(list), R"("reached":"closed")"));
  EXPECT_TRUE(has(peer_events(list), R"("jobs":[3,5])"));
}

TEST(LinkTable, GuessesAreMarkedAlsoThoseOfLatency) {
  proto::LinkList list;
  list.ends = {{.name = "a"}, {.name = "b"}};
  list.links = {{.from = 0,
                 .to = 1,
                 .bytes_per_second = 1.25e6,
                 .latency = std::chrono::milliseconds(100),
                 .assumed = true},
                {.from = 1,
                 .to = 0,
                 .bytes_per_second = 1e6,
                 .latency = std::chrono::milliseconds(20),
                 .relayed = true,
                 .seconds_since = 5,
                 .in_use = true}};
  const auto lines = link_table(list);
  EXPECT_TRUE(has(lines, "~10M ~100ms"));
  EXPECT_TRUE(has(lines, "8.0Mr* 20ms"));
  list.links[1] = {.from = 1, .to = 0, .bytes_per_second = 12.5e3, .latency = std::chrono::milliseconds(500)};
  EXPECT_TRUE(has(link_table(list), "no way"));
}

// What is safe of a job, and what it goes on from: no checkpoint is not one after step 0.
TEST(JobLines, SayWhatAJobWouldGoOnFrom) {
  const auto safety = [](proto::JobState state, uint64_t checkpoint, uint64_t recovery) {
    proto::JobStatus job{.job = 4, .name = "gpt", .state = state, .step = 32, .steps = 100};
    job.checkpoint_step = checkpoint;
    job.recovery_step = recovery;
    return job_lines(job, false, 0).at(2);
  };
  EXPECT_EQ(safety(proto::JobState::Running, 0, 0), "no checkpoint yet, 0 recoveries, plan 0");
  EXPECT_EQ(safety(proto::JobState::Running, 0, 30),
            "no checkpoint yet, copies after step 30, 0 recoveries, plan 0");
  EXPECT_EQ(safety(proto::JobState::Stopped, 0, 0), "no checkpoint, 0 recoveries, plan 0");
  EXPECT_EQ(safety(proto::JobState::Stopped, 32, 32), "last checkpoint after step 32, 0 recoveries, plan 0");
  proto::JobStatus serves{.job = 4, .name = "gpt", .state = proto::JobState::Running};
  EXPECT_EQ(job_lines(serves, false, 0).at(2), "0 recoveries, plan 0");

  proto::JobStatus job{.job = 4, .steps = 100};
  EXPECT_EQ(way_on(job), "begins anew, for it had no checkpoint");
  job.checkpoint_step = 32;
  EXPECT_EQ(way_on(job), "goes on from the checkpoint of step 32");
  EXPECT_EQ(way_on({.job = 4}), "goes on") << "it trains nothing, or nobody knows yet";
}

TEST(JobLines, SayWhatReplicasMakeAndWhenTheyAgreed) {
  proto::JobStatus job{.job = 4, .name = "gpt", .state = proto::JobState::Running, .step = 32, .steps = 100};
  const auto line = [&] { return job_lines(job, false, 0).at(2); };
  job.replicas.steps = {30, 10, 4};
  EXPECT_EQ(line(), "3 replicas, 30, 10 and 4 steps a round; not agreed yet");
  job.replicas.steps = {30, 30};
  job.replicas.agreed_step = 240;
  job.replicas.seconds_since_agreement = 12.4;
  EXPECT_EQ(line(), "2 replicas, 30 steps a round each; agreed after step 240, 12s ago");
  job.replicas.steps = {30};
  EXPECT_EQ(line(), "1 replica, 30 steps a round; agreed after step 240, 12s ago");
}

}  // namespace
}  // namespace weft::cli
