// Jobs without weights, and clusters to plan them for.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/plan_cluster.h"
#include "cli/plan_job.h"
#include "configs/cluster.h"
#include "tests/onnx/models.h"
#include "tests/support/scratch.h"

namespace weft::cli {
using onnx::testing::ModelMaker;

// Puts the tensor's bytes into a file that is not there, of its own, for no two may share bytes.
inline void leave_out(onnx::pb::TensorProto& tensor) {
  tensor.clear_float_data();
  tensor.clear_int64_data();
  tensor.clear_raw_data();
  tensor.set_data_location(onnx::pb::TensorProto::EXTERNAL);
  auto* entry = tensor.add_external_data();
  entry->set_key("location");
  entry->set_value("absent_" + tensor.name() + ".bin");
}

// y = relu(x W1) ... WN, each W of [width, width], no weight there.
inline ModelMaker hollow_chain(int layers, int64_t width = 64, int64_t batch = -1) {
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

inline PlanCluster cluster(const std::string& text) {
  const auto parsed = configs::parse_cluster(text);
  EXPECT_TRUE(parsed.has_value()) << (parsed ? "" : parsed.error().message);
  return {"cluster.yaml", configs::view(*parsed), {}};
}
inline PlanCluster two_regions(const std::string& memory = "1GiB") {
  const std::string device = "peak_flops: {fp32: 1e10}, memory_bandwidth: 1e10, memory: " + memory;
  return cluster(
      "devices: [{name: a, " + device + ", region: west, count: 2}, {name: b, " + device +
      ", region: east, count: 2}]\nregions: {within: {round_trip_ms: 1, bandwidth: 1Gbit}, between: "
      "[{from: west, to: east, round_trip_ms: 50, bandwidth: 10Mbit}]}\n");
}
inline plan::Plan planned(const PlannedJob& job, const PlanCluster& on) {
  plan::PlanRequest request = job.request();
  request.cluster = on.view;
  auto plan = plan::make_plan(request);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan ? *plan : plan::Plan{};
}

}  // namespace weft::cli
