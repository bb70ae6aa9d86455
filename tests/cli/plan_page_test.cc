// The page that shows a plan.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/plan_html.h"
#include "cli/plan_outcome.h"
#include "cli/plan_replicas.h"
#include "cli/plan_report.h"
#include "plan/strategy.h"
#include "tests/cli/planned.h"
#include "train/plan_request.h"

namespace weft::cli {
namespace {

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

TEST_F(Plan, APageOfReplicasIsWellFormedAndEscapesWhatItWasGiven) {
  const std::string hostile = "<script>alert('x')</script>\"&\xff\x01";
  auto job = open(write(hollow_chain(6, 256)),
                  {"batch_size=64", "microbatch_size=8", "replicas=2", "sync={every: 10, codec: int8}"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  job->name = hostile;
  PlanCluster on = two_regions();
  on.notes.push_back(hostile);
  plan::PlanRequest pipeline = job->request();
  pipeline.cluster = on.view;
  const auto request = train::replicas_request(job->job, pipeline);
  ASSERT_TRUE(request.has_value());
  const auto plan = plan::make_replicas_plan(*request);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ReplicasComparison comparison = compare_replicas(*job, *request, *plan);
  comparison.counts.push_back({.count = 77, .problem = hostile});
  const std::string page = html_replicas({&*job, &on, &*plan}, &comparison);
  EXPECT_TRUE(is_well_formed(page));
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  for (const char* part : {"Numbers of replicas compared", "Replica 1: a step", "Replica 2: memory by stage",
                           "Bandwidth between devices", "an agreement"})
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
