// The parts of `weft plan`: a job read without weights and data, clusters, what is told of a plan, and the
// page that shows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/plan_cluster.h"
#include "cli/plan_html.h"
#include "cli/plan_job.h"
#include "cli/plan_money.h"
#include "cli/plan_outcome.h"
#include "cli/plan_placement.h"
#include "cli/plan_report.h"
#include "configs/cluster.h"
#include "dag/text.h"
#include "data/dataset.h"
#include "data/npz_writer.h"
#include "peer/backend/reference/reference_kernels.h"
#include "plan/free_links.h"
#include "plan/strategy.h"
#include "tests/onnx/models.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/prepare.h"

namespace weft::cli {
namespace {
using onnx::testing::ModelMaker;
namespace pb = onnx::pb;

// Puts the tensor's bytes into a file that is not there, of its own, for no two may share bytes.
void leave_out(pb::TensorProto& tensor) {
  tensor.clear_float_data();
  tensor.clear_int64_data();
  tensor.clear_raw_data();
  tensor.set_data_location(pb::TensorProto::EXTERNAL);
  auto* entry = tensor.add_external_data();
  entry->set_key("location");
  entry->set_value("absent_" + tensor.name() + ".bin");
}

// y = relu(x W1) ... WN, each W of [width, width], no weight there.
ModelMaker hollow_chain(int layers, int64_t width = 64, int64_t batch = -1) {
  ModelMaker maker;
  maker.input("x", {batch, width});
  std::string value = "x";
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i), next = i + 1 < layers ? "h" + n : "y";
    leave_out(maker.weight("w" + n, {width, width}));
    maker.node("MatMul", {value, "w" + n}, {"m" + n});
    maker.node("Relu", {"m" + n}, {next});
    value = next;
  }
  maker.output("y");
  return maker;
}

class Plan : public testing::Test {
 protected:
  std::filesystem::path write(const ModelMaker& maker, const std::string& name = "model.onnx") const {
    return scratch_.write(name, maker.bytes());
  }
  Result<PlannedJob> open(const std::filesystem::path& path, const std::vector<std::string>& sets = {},
                          const std::map<std::string, int64_t>& sizes = {}) const {
    return open_planned_job(path, sets, sizes);
  }
  test::Scratch scratch_;
};

PlanCluster cluster(const std::string& text) {
  const auto parsed = configs::parse_cluster(text);
  EXPECT_TRUE(parsed.has_value()) << (parsed ? "" : parsed.error().message);
  return {"cluster.yaml", configs::view(*parsed), {}};
}
PlanCluster two_regions(const std::string& memory = "1GiB") {
  const std::string device = "peak_flops: {fp32: 1e10}, memory_bandwidth: 1e10, memory: " + memory;
  return cluster(
      "devices: [{name: a, " + device + ", region: west, count: 2}, {name: b, " + device +
      ", region: east, count: 2}]\nregions: {within: {round_trip_ms: 1, bandwidth: 1Gbit}, between: "
      "[{from: west, to: east, round_trip_ms: 50, bandwidth: 10Mbit}]}\n");
}
plan::Plan planned(const PlannedJob& job, const PlanCluster& on) {
  plan::PlanRequest request = job.request();
  request.cluster = on.view;
  auto plan = plan::make_plan(request);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan ? *plan : plan::Plan{};
}

// ---- the job ----

TEST_F(Plan, ABareModelNeedsNoWeights) {
  const auto job = open(write(hollow_chain(3)));
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->job.batch_size, 1u);
  EXPECT_EQ(job->request().optimizer_slots, 2u) << "adamw";
  for (const char* name : {"w0", "w1", "w2"})
    EXPECT_TRUE(job->graph.find_output(dag::OutputRole::Gradient, name)) << name;
}

TEST_F(Plan, AnyBatchSizeAndAnyKeyOfAJobCanBeSet) {
  const auto job = open(write(hollow_chain(2)), {"batch_size=32", "microbatch_size=8", "freeze=[w0]",
                                                 "optimizer={type: sgd, learning_rate: 1}"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->microbatches, 4u);
  EXPECT_EQ(job->graph.spec(job->graph.inputs()[0]).shape, (dag::Shape{8, 64}));
  EXPECT_EQ(job->request().optimizer_slots, 0u);
  EXPECT_FALSE(job->graph.find_output(dag::OutputRole::Gradient, "w0"));
  EXPECT_TRUE(job->graph.find_output(dag::OutputRole::Gradient, "w1"));
  EXPECT_FALSE(open(write(hollow_chain(2)), {"freeze=[nothing*]"}).has_value());
}

TEST_F(Plan, TheSizeOfAMicrobatchMayBeOpen) {
  const std::vector<std::string> sets{"batch_size=8", "microbatch_size=auto"};
  const auto path = write(hollow_chain(2));
  EXPECT_EQ(open_microbatch_sizes(path, sets).value(), (std::vector<uint32_t>{1, 2, 4, 8}));
  const auto job = open(path, sets);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->microbatches, 8u) << "the smallest until one is chosen";
  const auto two = open_planned_job(write(hollow_chain(2)), sets, {}, 2);
  ASSERT_TRUE(two.has_value()) << two.error().message;
  EXPECT_EQ(two->microbatches, 4u);
  EXPECT_TRUE(open_microbatch_sizes(path, std::vector<std::string>{"batch_size=8"})->empty());
  EXPECT_EQ(open_microbatch_sizes(write(hollow_chain(2, 64, 4)), sets).value(), (std::vector<uint32_t>{4}))
      << "as it was exported";
  EXPECT_EQ(open(write(hollow_chain(2, 64, 4)), sets)->microbatches, 2u);
  const auto wrong = open(write(hollow_chain(2, 64, 3)), sets);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("fixed batch of 3"), std::string::npos) << wrong.error().message;
}

TEST_F(Plan, OfABareModelSpeaksOfNoLinesOrFilesThatNobodyWrote) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_dim_param("length");
  maker.node("Relu", {"x"}, {"y"});
  const auto path = write(maker);
  const auto open_size = open(path);
  ASSERT_FALSE(open_size.has_value());
  EXPECT_EQ(open_size.error().message,
            path.string() +
                ": input 'x' of the model: nothing says how large 'length' is: say --size length=N, "
                "or give a job file, whose data tell it");
  const auto set = open(path, {"microbatch_size=3"});
  ASSERT_FALSE(set.has_value());
  EXPECT_NE(set.error().message.find("--set microbatch_size"), std::string::npos) << set.error().message;
}

// y = x + state[0], state of [2, batch, 3], and a scalar that divides it.
TEST_F(Plan, KnowsBatchesOnOtherAxesAndInputsWithAValue) {
  ModelMaker maker;
  maker.input("x", {-1, 3}).input("state", {2, -1, 3}).input("rate", {}).output("y");
  maker.ints("zero", {0}).clear_dims();
  maker.weight("w", {3, 3});
  onnx::testing::attribute(maker.node("Gather", {"state", "zero"}, {"first"}), "axis", int64_t{0});
  maker.node("MatMul", {"x", "w"}, {"m"});
  maker.node("Add", {"m", "first"}, {"sum"});
  maker.node("Div", {"sum", "rate"}, {"y"});
  write(maker);
  const auto job = open(scratch_.write("job.yaml", R"(model: model.onnx
task: train
inputs: {x: x, state: state, rate: {value: 16000}}
loss: {type: mse, output: y, target: t}
data: {train: {type: npz, path: absent.npz}}
batch_size: 8
microbatch_size: 4
steps: 1
optimizer: {type: sgd, learning_rate: 1}
)"));
  ASSERT_TRUE(job.has_value()) << job.error().message;
  for (const dag::ValueId input : job->graph.inputs()) {
    EXPECT_EQ(job->graph.spec(input).shape[0], 4) << job->graph.value(input).name;
    EXPECT_NE(job->graph.value(input).name, "rate");
  }
}

TEST_F(Plan, LooksThroughDataThatAreThere) {
  ModelMaker maker;
  maker.input("x", {-1, 2}).output("logits");
  maker.weight("w", {2, 3});
  maker.node("MatMul", {"x", "w"}, {"logits"});
  write(maker);
  const auto file = scratch_.write("job.yaml", R"(model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
data: {train: {type: npz, path: data.npz}}
batch_size: 2
steps: 1
optimizer: {type: sgd, learning_rate: 1}
)");
  const auto job = open(file);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_TRUE(look_at_data(*job)->empty()) << "there are none";
  const auto write_labels = [&](std::vector<double> labels) {
    const std::vector<data::NpzArray> arrays = {{"image", dag::Tensor({dag::DType::F64, {3, 2}})},
                                                {"label", dag::from_doubles({dag::DType::U8, {3}}, labels)}};
    scratch_.write("data.npz", data::npz_bytes(arrays).value());
  };
  write_labels({0, 1, 2});
  EXPECT_TRUE(look_at_data(*job)->empty());
  write_labels({0, 1, 3});
  const auto wrong = look_at_data(*job);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("column 'label' holds 3 in row 2"), std::string::npos)
      << wrong.error().message;
}

TEST_F(Plan, AFixedBatchIsTakenAndNoOther) {
  const auto path = write(hollow_chain(2, 64, 4));
  EXPECT_EQ(open(path)->job.batch_size, 4u);
  const auto other = open(path, {"batch_size=6"});
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("fixed batch of 4"), std::string::npos) << other.error().message;
  ModelMaker maker = hollow_chain(2, 64, 4);
  maker.input("bias", {1, 64});
  maker.node("Add", {"y", "bias"}, {"z"});
  maker.output("z");
  EXPECT_TRUE(open(write(maker)).has_value()) << "other inputs need not begin with the batch";
}

TEST_F(Plan, AnOpenDimIsAskedForByName) {
  ModelMaker maker = hollow_chain(1);
  maker.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_dim_param("width");
  const auto path = write(maker);
  const auto job = open(path);
  ASSERT_FALSE(job.has_value());
  EXPECT_NE(job.error().message.find("--size width=N"), std::string::npos) << job.error().message;
  EXPECT_TRUE(open(path, {}, {{"width", 64}}).has_value());
}

TEST_F(Plan, AJobNeedsNoData) {
  write(hollow_chain(2));
  const auto path = scratch_.write("job.yaml", std::string_view(R"(
model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: y, labels: label}
data: {train: {type: npz, path: nowhere/train.npz}, test: {type: npz, path: nowhere/test.npz}}
batch_size: 8
epochs: 3
optimizer: {type: adam}
output: nowhere/trained.onnx
)"));
  const auto job = open(path);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_TRUE(job->request().evaluates);
  EXPECT_TRUE(job->notes.empty()) << job->notes.front();
}

// Weights that are zeros, shapes from the model alone: and yet the very graph that is trained.
TEST_F(Plan, TheGraphIsTheOneThatIsTrained) {
  for (const char* name : {"resnet18w16", "gpt3", "unet", "two_heads"}) {
    const auto folder = scratch_.folder() / name;
    std::filesystem::create_directories(folder);
    const auto path = test::unpack_case(name, folder);
    const auto job = configs::load_job(path);
    ASSERT_TRUE(job.has_value()) << job.error().message;
    const auto model = onnx::read_model(job->model);
    const auto dataset = data::open_dataset(*job->train);
    ASSERT_TRUE(model.has_value() && dataset.has_value()) << name;
    const auto prepared = train::prepare_training(*job, *model, **dataset, peer::evaluate_reference);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    std::filesystem::remove(folder / "data.npz");
    const auto planned = open(path);
    ASSERT_TRUE(planned.has_value()) << planned.error().message;
    EXPECT_EQ(dag::to_text(planned->graph), dag::to_text(prepared->graph)) << name;
  }
}

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

// ---- the page ----

// Whether every tag is closed in order, attributes are quoted and no bare & or < is left.
testing::AssertionResult is_well_formed(const std::string& page) {
  std::vector<std::string> open;
  size_t at = page.find("<html");
  if (!page.starts_with("<!DOCTYPE html>") || at == std::string::npos)
    return testing::AssertionFailure() << "its start";
  while (at < page.size()) {
    if (page[at] == '&' && page.find(';', at) - at > 8)
      return testing::AssertionFailure() << page.substr(at, 40);
    if (page[at] != '<') {
      ++at;
      continue;
    }
    size_t end = at + 1;
    for (bool quoted = false; end < page.size() && (quoted || page[end] != '>'); ++end) {
      if (page[end] == '"') quoted = !quoted;
      if (page[end] == '<') return testing::AssertionFailure() << "a < in " << page.substr(at, 80);
    }
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name =
        tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1))
        return testing::AssertionFailure() << tag << " closes nothing";
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? testing::AssertionSuccess()
                      : testing::AssertionFailure() << open.back() << " stays open";
}

TEST_F(Plan, APageIsWellFormedAndEscapesWhatItWasGiven) {
  const std::string hostile = "<script>alert('x')</script>\"&\xff\x01";
  auto job = open(write(hollow_chain(6, 256)), {"batch_size=64", "microbatch_size=8", "placement.stages=3"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  job->name = hostile;
  job->notes.push_back(hostile);
  PlanCluster on = two_regions();
  std::vector<plan::DeviceView> devices = on.view.devices();
  for (auto& device : devices) {
    device.name += hostile;
    device.region += hostile;
  }
  plan::ClusterView view(devices);
  for (size_t from = 0; from < devices.size(); ++from)
    for (size_t to = 0; to < devices.size(); ++to)
      if (from != to) view.set_link(from, to, on.view.link(from, to));
  on.view = view;
  const plan::Plan plan = planned(*job, on);
  const auto compared = compare_strategies(*job, on.view);
  ASSERT_TRUE(compared.has_value());
  const std::string page = html_report({&*job, &on, &plan, stage_facts(job->graph, plan)}, &*compared);
  EXPECT_TRUE(is_well_formed(page));
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  for (const char* outside : {"http:", "https:", "//", "src=", "@import", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside << " would be fetched";
  for (const char* part : {"Strategies compared", "Bandwidth between devices", "A step", "The graph by stage",
                           "Memory by stage", "prefers-color-scheme", "class=\"fence\""})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST(PlanPage, ManyDevicesAreDrawnByRegion) {
  const PlanCluster on = cluster(
      "devices: [{type: rtx3080, count: 100, region: a}, {type: rtx3080, count: 100, region: b}]\nregions: "
      "{within: "
      "{round_trip_ms: 1, bandwidth: 1Gbit}, between: [{from: a, to: b, round_trip_ms: 9, bandwidth: "
      "1Mbit}]}\n");
  EXPECT_LT(html_heat_map(on.view).size(), 4000u);
}

}  // namespace
}  // namespace weft::cli
