// What `weft plan` makes of a cluster and of what a job says of peers, and what it tells of a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/plan_money.h"
#include "cli/plan_outcome.h"
#include "cli/plan_placement.h"
#include "cli/plan_report.h"
#include "plan/free_links.h"
#include "plan/strategy.h"
#include "tests/cli/planned.h"
#include "train/plan_request.h"

namespace weft::cli {
namespace {

// ---- the cluster ----

TEST_F(Plan, DevicesOfTheCatalogueAreAddedToARegion) {
  const auto path =
      scratch_.write("cluster.yaml",
                     std::string_view("devices: [{type: rtx3080, count: 2, region: west}]\nregions: {within: "
                                      "{round_trip_ms: 1, bandwidth: 1Gbit}}\n"));
  const std::vector<std::string> two = {"rtx3080@west", "rtx4090@west"};
  const auto added = cluster_of_file(path, two);
  ASSERT_TRUE(added.has_value()) << added.error().message;
  ASSERT_EQ(added->view.devices().size(), 4u);
  EXPECT_EQ(added->view.devices()[2].name, "rtx3080-3");
  EXPECT_EQ(added->view.devices()[3].name, "rtx4090-1");
  EXPECT_EQ(added->view.link(0, 3).bytes_per_second, 125e6);
  const auto refused = [&](const std::string& text) {
    return cluster_of_file(path, std::span(&text, 1)).error().code;
  };
  EXPECT_EQ(refused("rtx9999@west"), ErrorCode::NotFound);
  EXPECT_EQ(refused("rtx3080@moon"), ErrorCode::NotFound);
  EXPECT_EQ(refused("rtx3080"), ErrorCode::InvalidArgument);
}

TEST(PlanCluster, OfABrokersPeersTakesThoseThatServe) {
  std::vector<proto::PeerStatus> peers;
  for (const char* state : {"pool", "active", "gone", "draining"})
    peers.push_back({.name = state, .region = "west", .state = state, .memory = {1 << 30}});
  const std::string added = "rtx3080@east";
  const auto found = cluster_of_peers(peers, "a broker", std::span(&added, 1));
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->view.devices().size(), 3u);
  EXPECT_GT(found->view.link(0, 1).bytes_per_second, found->view.link(0, 2).bytes_per_second);
  EXPECT_FALSE(found->notes.empty()) << "that links are assumed is said";
  EXPECT_EQ(cluster_of_peers({}, "a broker", {}).error().code, ErrorCode::Infeasible);
}

TEST(PlanCluster, PartsKeepTheirLinks) {
  const PlanCluster whole = two_regions();
  const auto regions = by_region(whole.view);
  ASSERT_EQ(regions.size(), 2u);
  const std::vector<uint32_t> chosen = {3, 0};
  const plan::ClusterView part = whole.view.only(chosen);
  EXPECT_EQ(part.devices()[0].name, "b-2");
  EXPECT_EQ(part.link(0, 1).bytes_per_second, whole.view.link(3, 0).bytes_per_second);
  EXPECT_GT(plan::with_free_links(whole.view).link(0, 2).bytes_per_second, 1e15);
}

// ---- what the job says of peers ----

TEST_F(Plan, ExcludedPeersAreNotInTheCluster) {
  auto job = open(write(hollow_chain(3)), {"placement={exclude: [a-2, b-1]}"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  PlanCluster on = two_regions();
  const double over = on.view.link(0, 3).bytes_per_second;
  ASSERT_TRUE(apply_placement(*job, on, true).has_value());
  ASSERT_EQ(on.view.devices().size(), 2u);
  EXPECT_EQ(on.view.devices()[0].name, "a-1");
  EXPECT_EQ(on.view.devices()[1].name, "b-2");
  EXPECT_EQ(on.view.link(0, 1).bytes_per_second, over);
  ASSERT_FALSE(on.notes.empty());
  EXPECT_EQ(on.notes.back(), "2 of 4 peers are excluded by the job");
}

TEST_F(Plan, SaysWhatReplicasWouldGain) {
  const std::string device = "peak_flops: {fp32: 1e10}, memory_bandwidth: 1e10, memory: 1GiB";
  const PlanCluster on =
      cluster("devices: [{name: a, " + device + ", region: here}, {name: b, " + device +
              ", region: there}, {name: c, " + device +
              ", region: yonder}]\nregions: {within: {round_trip_ms: 1, bandwidth: 10Gbit}, "
              "between: [{from: here, to: there, round_trip_ms: 40, bandwidth: 5Mbit}, {from: "
              "here, to: yonder, round_trip_ms: 40, bandwidth: 5Mbit}, {from: there, to: "
              "yonder, round_trip_ms: 40, bandwidth: 5Mbit}]}\n");
  const auto gain = [&](std::vector<std::string> sets, int batch = 64) {
    sets.insert(sets.end(), {"batch_size=" + std::to_string(batch), "microbatch_size=8"});
    const auto job = open(write(hollow_chain(6, 256)), sets);
    if (!job) return job.error().message;
    plan::PlanRequest request = job->request();
    request.cluster = on.view;
    const auto plan = plan::make_plan(request);
    return plan ? train::describe_replicas_gain(job->job, job->graph, request, *plan) : plan.error().message;
  };
  const std::string said = gain({});
  EXPECT_TRUE(said.starts_with("3 replicas, which agree every 30 steps, would take ")) << said;
  EXPECT_NE(said.find("replicas: 3, sync: {every: 30, codec: int4, overlap: true}"), std::string::npos)
      << said;
  const std::string shorter = gain({}, 8);  // steps, in which less can travel
  EXPECT_NE(shorter.find("replicas: 3, sync: {every: 30, codec: \"topk:0.02:int4\"}"), std::string::npos)
      << shorter;
  EXPECT_EQ(gain({"replicas=2"}), "") << "it has said what it wants";
  EXPECT_EQ(gain({"placement={pin: [{op: inputs, peer: a}]}"}).find("3 replicas"), std::string::npos);
  EXPECT_EQ(gain({"placement={owner: 0.6}"}).find("3 replicas"), std::string::npos);
}

TEST_F(Plan, OneOwnersMachinesHoldOnlyAShare) {
  const std::string device = "peak_flops: {fp32: 1e10}, memory_bandwidth: 1e10, memory: 1GiB, region: here";
  const PlanCluster on =
      cluster("devices: [{name: a, " + device + ", owner: anna, count: 3}, {name: b, " + device +
              ", owner: ben}]\nregions: {within: {round_trip_ms: 1, bandwidth: 10Gbit}}\n");
  EXPECT_EQ(on.view.devices()[0].owner, "anna");
  const auto job = open(write(hollow_chain(6, 256)), {"placement={owner: 0.6}", "batch_size=8"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const plan::Plan plan = planned(*job, on);
  std::set<std::string> owners;
  for (const plan::StagePlan& stage : plan.stages) owners.insert(on.view.devices()[stage.devices[0]].owner);
  EXPECT_EQ(owners, (std::set<std::string>{"anna", "ben"}));
  EXPECT_TRUE(std::any_of(plan.explanation.begin(), plan.explanation.end(), [](const std::string& line) {
    return line.starts_with("at most 60% of the parameters on one owner's machines: ");
  }));
  const auto few = open(write(hollow_chain(6)), {"placement={owner: 0.4}"});
  plan::PlanRequest request = few->request();
  request.cluster = on.view;
  EXPECT_EQ(plan::make_plan(request).error().message,
            "at most 40% of the parameters on one owner's machines needs 3 owners, there are 2");
  for (const char* wrong : {"0", "1.5", "-1", "half", "[1]"})
    EXPECT_FALSE(open(write(hollow_chain(1)), {"placement={owner: " + std::string(wrong) + "}"})) << wrong;
}

TEST_F(Plan, AnUnknownPeerIsAnErrorOrANote) {
  auto job = open(write(hollow_chain(3)), {"placement={exclude: [a-2, attic]}"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  PlanCluster on = two_regions();
  const Status refused = apply_placement(*job, on, true);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NotFound);
  EXPECT_NE(refused.error().message.find("--set placement: there is no peer 'attic'"), std::string::npos)
      << refused.error().message;
  PlanCluster live = two_regions();
  ASSERT_TRUE(apply_placement(*job, live, false).has_value());
  EXPECT_EQ(live.view.devices().size(), 3u);
  EXPECT_NE(live.notes.front().find("'attic'"), std::string::npos) << live.notes.front();
  auto none = open(write(hollow_chain(3)), {"placement={exclude: [a-1, a-2, b-1, b-2]}"});
  PlanCluster all = two_regions();
  EXPECT_EQ(apply_placement(*none, all, true).error().code, ErrorCode::Infeasible);
}

TEST_F(Plan, PinnedOpsStayWhereTheJobWantsThem) {
  auto job = open(write(hollow_chain(6, 256)),
                  {"batch_size=64", "microbatch_size=8",
                   "placement={exclude: [a-1], pin: [{ops: inputs, peer: b-2}, {ops: labels, peer: a-2}]}"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  PlanCluster on = two_regions();
  ASSERT_TRUE(apply_placement(*job, on, true).has_value());
  const plan::Plan plan = planned(*job, on);
  ASSERT_GE(plan.stages.size(), 2u);
  EXPECT_EQ(on.view.devices()[plan.stages.front().devices[0]].name, "b-2");
  EXPECT_EQ(on.view.devices()[plan.stages.back().devices[0]].name, "a-2");
  EXPECT_EQ(plan.explanation.back(), "as pinned: inputs on b-2, labels on a-2");
  const auto compared = compare_strategies(*job, on.view);
  ASSERT_TRUE(compared.has_value()) << compared.error().message;
  EXPECT_TRUE(compared->best_machine.has_value()) << "what one machine does, whatever is pinned";
}

TEST_F(Plan, APinThatNobodyCanKeepNamesItsPlace) {
  const auto message_of = [&](const std::string& pins) {
    auto job = open(write(hollow_chain(3)), {"placement={pin: " + pins + "}"});
    PlanCluster on = two_regions();
    const Status refused = job ? apply_placement(*job, on, true) : fail(job.error());
    return refused ? std::string("(no error)") : refused.error().message;
  };
  for (const auto& [pins, says] : {std::pair("[{ops: inputs, peer: c}]", "there is no peer 'c'"),
                                   std::pair("[{ops: nothing, peer: b-1}]", "no op of the model is called"),
                                   std::pair("[{ops: inputs}]", "`placement.pin[0].peer` is missing")}) {
    const std::string message = message_of(pins);
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_EQ(message.find("--set placement: "), 0u) << message;
  }
}

// ---- what is told ----

TEST_F(Plan, EveryParameterAndOpIsInAStage) {
  const auto job =
      open(write(hollow_chain(6, 256)), {"batch_size=64", "microbatch_size=8", "placement.stages=3"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const plan::Plan plan = planned(*job, two_regions());
  const auto facts = stage_facts(job->graph, plan);
  ASSERT_EQ(facts.size(), 3u);
  int64_t parameters = 0;
  for (const StageFacts& stage : facts) {
    EXPECT_GT(stage.ops, 0u);
    parameters += stage.parameters;
  }
  EXPECT_EQ(parameters, 6 * 256 * 256);
}

// What a plan that is slower than fewer stages says first, in the unit in which people compare.
TEST_F(Plan, TheFirstLineSpeaksOfSamples) {
  const auto job =
      open(write(hollow_chain(6, 256)), {"batch_size=64", "microbatch_size=8", "placement.stages=4"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const std::string line = planned(*job, two_regions()).explanation.front();
  EXPECT_EQ(line.rfind("slower than ", 0), 0u) << line;
  EXPECT_NE(line.find(" samples/s)"), std::string::npos) << line;
}

TEST_F(Plan, JsonHasTheDocumentedKeys) {
  const auto job =
      open(write(hollow_chain(4, 256)), {"batch_size=64", "microbatch_size=8", "placement.stages=2"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const PlanCluster on = two_regions();
  const plan::Plan plan = planned(*job, on);
  const auto json = nlohmann::json::parse(json_plan({&*job, &on, &plan, stage_facts(job->graph, plan)}));
  EXPECT_EQ(json["event"], "plan");
  ASSERT_EQ(json["stages"].size(), 2u);
  EXPECT_EQ(json["stages"][0]["sends"][0]["to_stage"], 1);
  EXPECT_NEAR(
      json["predicted_samples_per_second"].get<double>() * json["predicted_step_seconds"].get<double>(), 64,
      1e-6);
  EXPECT_TRUE(json["lines"].is_array());
  EXPECT_TRUE(json.contains("job"));
  double waited = 0;
  for (const auto& share : json["critical_path"]) waited += share["seconds"].get<double>();
  EXPECT_NEAR(waited, json["predicted_step_seconds"].get<double>(), 1e-9);
  EXPECT_TRUE(json["money"]["bought"].is_null()) << "nobody knows what these devices cost";
  for (const auto& stage : json["stages"]) {
    double most = 0;
    for (const auto& point : stage["memory_over_time"]) most = std::max(most, point[1].get<double>());
    EXPECT_GT(most, 0);
    EXPECT_LE(most, stage["memory_bytes"].get<double>());
  }
}

TEST_F(Plan, MoneyIsKnownOfDevicesOfTheCatalogue) {
  const auto job = open(write(hollow_chain(4, 512)), {"batch_size=64", "microbatch_size=8"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const auto file = [&](const std::string& devices) {
    return cluster_of_file(
               scratch_.write("c.yaml", "devices: [" + devices +
                                            "]\nregions: {within: {round_trip_ms: 1, bandwidth: 10Gbit}}\n"),
               {})
        .value();
  };
  const PlanCluster both = file("{type: h100, region: a}");
  const Money money = money_of(both, planned(*job, both));
  ASSERT_TRUE(money.bought_an_hour && money.rented_an_hour);
  EXPECT_NEAR(*money.bought_an_hour * kHoursWrittenOff, 25000, 1e-6);
  EXPECT_EQ(money_line({.bought_an_hour = 3.6, .rented_an_hour = {}}, 10.0),
            "bought 3.60 USD an hour, 100 USD a million samples");
  const PlanCluster owned = file("{type: rtx3080, region: a}");
  EXPECT_FALSE(money_of(owned, planned(*job, owned)).rented_an_hour) << "nobody public rents it out";
  EXPECT_TRUE(money_of(owned, planned(*job, owned)).bought_an_hour);
  const PlanCluster unknown =
      file("{name: x, peak_flops: {fp32: 1e13}, memory: 8GiB, memory_bandwidth: 1e11, region: a}");
  EXPECT_EQ(money_line(money_of(unknown, planned(*job, unknown)), 1), "");
}

TEST_F(Plan, AComparisonTellsEveryStrategyAndTheBounds) {
  const auto job = open(write(hollow_chain(6, 512)), {"batch_size=64", "microbatch_size=8"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const PlanCluster on = two_regions();
  const auto compared = compare_strategies(*job, on.view);
  ASSERT_TRUE(compared.has_value()) << compared.error().message;
  const auto json = nlohmann::json::parse(json_comparison(*job, on, *compared));
  EXPECT_EQ(json["event"], "comparison");
  std::set<std::string> names;
  for (const auto& row : json["strategies"]) {
    names.insert(row["name"]);
    for (const char* key : {"stages", "microbatches", "step_seconds", "samples_per_second", "bottleneck",
                            "bytes_over_slowest_link"})
      EXPECT_TRUE(row.contains(key)) << key;
    if (row["samples_per_second"].is_null()) continue;
    EXPECT_LE(row["samples_per_second"], json["bound_samples_per_second"].get<double>() * 1.001);
    EXPECT_GE(row["samples_per_second_compressed"].get<double>(),
              row["samples_per_second"].get<double>() * 0.9)
        << row["name"];
  }
  EXPECT_EQ(names.size(), plan::strategies().size());
  for (const char* key : {"free_network_samples_per_second", "best_machine_samples_per_second",
                          "best_site_samples_per_second", "planning_seconds"})
    EXPECT_TRUE(json[key].is_number()) << key;
  EXPECT_LE(json["best_machine_samples_per_second"], json["bound_samples_per_second"]);
}

TEST_F(Plan, NoMachineThatHoldsTheJobIsNull) {
  // 16 MiB of weights are some 100 MiB with gradients, slots and a copy; two regions of two hold them.
  const auto job = open(write(hollow_chain(16, 512)), {"batch_size=8", "microbatch_size=8"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const PlanCluster on = two_regions("64MiB");
  const auto compared = compare_strategies(*job, on.view);
  ASSERT_TRUE(compared.has_value()) << compared.error().message;
  EXPECT_FALSE(compared->best_machine.has_value());
  EXPECT_TRUE(nlohmann::json::parse(json_comparison(*job, on, *compared))["best_machine_samples_per_second"]
                  .is_null());
}

}  // namespace
}  // namespace weft::cli
