// What pages are told of a broker, and what that costs it.
#include "ui/board.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/ui/fake_views.h"
#include "ui/plan_page.h"

namespace weft::ui {
namespace {

using test::FakeBroker;
using test::job_status;
using test::peer_status;
using Json = nlohmann::json;

struct Looking : ::testing::Test {
  FakeBroker broker;
  Board board{broker};
  Now now{Instant(std::chrono::hours(1)), 1'000'000};
  void later(Duration by = std::chrono::seconds(1)) {
    now.clock += by;
    now.unix_ms += std::chrono::duration_cast<std::chrono::milliseconds>(by).count();
  }
  Json look(const Look& look = {}) { return Json::parse(board.look(look, now)); }
};

TEST_F(Looking, AnEmptyBrokerIsSaidToBeThere) {
  const Json state = look();
  EXPECT_EQ(state["broker"]["address"], "127.0.0.1:7777");
  EXPECT_TRUE(state["broker"]["is_there"]);
  EXPECT_TRUE(state["jobs"].empty());
  EXPECT_TRUE(state["job"].is_null());
  EXPECT_EQ(state["peers"]["count"], 0);
}

TEST_F(Looking, TheNewestThatRunsIsShownUnlessAnotherIsWanted) {
  broker.listed = {job_status(3, proto::JobState::Failed), job_status(2, proto::JobState::Running),
                   job_status(1, proto::JobState::Finished)};
  EXPECT_EQ(look()["job"]["job"], 2);
  EXPECT_EQ(look({.job = 1})["job"]["job"], 1);
  broker.listed[1].state = proto::JobState::Stopped;
  later();
  EXPECT_EQ(look()["job"]["job"], 3);
}

TEST_F(Looking, ManyPagesCostTheBrokerWhatOneDoes) {
  broker.listed = {job_status(1, proto::JobState::Running)};
  broker.does_step(1, 1, 2.5);
  for (int page = 0; page < 100; ++page) look();
  EXPECT_EQ(broker.asked, 1);
  EXPECT_EQ(broker.events_read, 1);
  later();
  for (int page = 0; page < 100; ++page) look();
  EXPECT_EQ(broker.asked, 2);
  EXPECT_EQ(broker.events_read, 1);  // the rest is known
}

TEST_F(Looking, APageGetsOfACurveWhatItLacks) {
  broker.listed = {job_status(1, proto::JobState::Running)};
  for (uint64_t step = 1; step <= 10; ++step) broker.does_step(1, step, 1.0 / static_cast<double>(step));
  const Json first = look()["job"]["curves"];
  EXPECT_EQ(first["step"].size(), 10u);
  EXPECT_EQ(first["loss"][3], 0.25);
  broker.does_step(1, 11, std::numeric_limits<double>::infinity());
  later();
  const Json more = look({.generation = first["generation"], .points = 10})["job"]["curves"];
  EXPECT_EQ(more["from"], 9);
  EXPECT_EQ(more["step"], (std::vector<int>{10, 11}));
  EXPECT_TRUE(more["loss"][1].is_null());
  // Of another generation, or of more than there is: all of it.
  EXPECT_EQ(look({.generation = 99, .points = 10})["job"]["curves"]["from"], 0);
  EXPECT_EQ(look({.generation = first["generation"], .points = 12})["job"]["curves"]["from"], 0);
}

TEST_F(Looking, PeersThatComeAndGoAreNoted) {
  broker.peer_list.peers = {peer_status("one", "active"), peer_status("two", "active")};
  EXPECT_TRUE(look()["changes"].empty());  // they were there
  broker.peer_list.peers = {peer_status("one", "gone"), peer_status("three", "pool")};
  later();
  const Json changes = look()["changes"];
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0]["name"], "one");
  EXPECT_EQ(changes[0]["after"], "gone");
  EXPECT_EQ(changes[1]["before"], "");
  EXPECT_EQ(changes[2]["name"], "two");
  EXPECT_EQ(changes[2]["after"], "");
  for (int i = 0; i < 1000; ++i) {
    broker.peer_list.peers[0].state = i % 2 == 0 ? "pool" : "suspect";
    later();
    look();
  }
  EXPECT_EQ(look()["changes"].size(), kChangesMax);
}

TEST_F(Looking, ABrokerThatIsAwayIsSaidAndComesBack) {
  broker.listed = {job_status(1, proto::JobState::Running)};
  look();
  broker.away = Error{ErrorCode::Unavailable, "cannot reach the broker"};
  later();
  const Json away = look();
  EXPECT_FALSE(away["broker"]["is_there"]);
  EXPECT_EQ(away["broker"]["why"], "cannot reach the broker");
  EXPECT_EQ(away["broker"]["heard"], 1'000'000);
  EXPECT_EQ(away["job"]["job"], 1);  // what was known
  broker.away.reset();
  later();
  EXPECT_TRUE(look()["broker"]["is_there"]);
}

TEST_F(Looking, OlderJobsAreAskedForByNumber) {
  broker.hidden = {job_status(7, proto::JobState::Finished)};
  EXPECT_EQ(look({.job = 7})["job"]["job"], 7);
  const Json missing = look({.job = 8});
  EXPECT_TRUE(missing["job"].is_null());
  EXPECT_EQ(missing["missing"], "there is no job 8");
}

TEST_F(Looking, HistoriesOfManyJobsAreBounded) {
  for (proto::JobNumber number = 1; number <= 100; ++number)
    broker.hidden.push_back(job_status(number, proto::JobState::Finished));
  broker.does_step(1, 1, 2);
  for (proto::JobNumber number = 1; number <= 100; ++number) {
    later();
    EXPECT_EQ(look({.job = number})["job"]["job"], number);
  }
  EXPECT_EQ(broker.events_read, 1);
  look({.job = 1});  // it had made room, and is read again
  EXPECT_EQ(broker.events_read, 2);
}

TEST_F(Looking, StagesAndLinksAreShownWithReplicas) {
  proto::JobStatus status = job_status(1, proto::JobState::Running);
  proto::StageStatus stage{.seat = {1, 2}, .peer = {}, .peer_name = "a", .region = "b", .busy = 0.5};
  stage.links = {{.seat = {0, 0},
                  .bytes_sent = 1000,
                  .seconds_waiting = 0.25,
                  .bytes_dense = 4000,
                  .bytes_encoded = 1000,
                  .errors = 2,
                  .error_sum = 0.02}};
  status.stages = {stage};
  broker.listed = {status};
  const Json shown = look()["job"]["stages"][0];
  EXPECT_EQ(shown["replica"], 2);
  EXPECT_EQ(shown["busy"], 0.5);
  EXPECT_EQ(shown["links"][0]["dense"], 4000);
  EXPECT_EQ(shown["links"][0]["waiting"], 0.25);
  EXPECT_EQ(shown["links"][0]["error"], 0.01);
}

TEST_F(Looking, WhatIsBeingSavedIsShown) {
  proto::JobStatus status = job_status(1, proto::JobState::Running);
  broker.listed = {status};
  EXPECT_TRUE(look()["job"]["saving"].is_null());
  EXPECT_TRUE(look()["job"]["replicas"].is_null());
  status.saving.step = 40;
  status.saving.bytes = {100};
  status.saving.saved = {30};
  broker.listed = {status};
  later();
  EXPECT_EQ(look()["job"]["saving"], (Json{{"step", 40}, {"bytes", 100}, {"saved", 30}}));
}

TEST_F(Looking, ReplicasAndWhenTheyAgreedAreShown) {
  proto::JobStatus status = job_status(1, proto::JobState::Running);
  status.replicas.steps = {30, 10};
  broker.listed = {status};
  EXPECT_EQ(look()["job"]["replicas"]["steps"], (Json{30, 10}));
  EXPECT_TRUE(look()["job"]["replicas"]["agreed_step"].is_null());
  status.replicas.agreed_step = 80;
  status.replicas.seconds_since_agreement = 2.5;
  broker.listed = {status};
  later();
  EXPECT_EQ(look()["job"]["replicas"]["agreed_step"], 80);
  EXPECT_EQ(look()["job"]["replicas"]["seconds_since_agreement"], 2.5);
}

// Whatever others call themselves stays text: fit for one line, and in the plan's page no markup.
TEST_F(Looking, NamesFromOutsideAreText) {
  const std::string name = "<script>alert('1')</script>\n\xff";
  broker.listed = {job_status(1, proto::JobState::Running)};
  broker.listed[0].name = name;
  broker.happens(1, {.kind = proto::JobEventKind::Plan, .text = name, .peers = {name}});
  broker.peer_list.peers = {peer_status(name, "active")};
  const Json state = look();
  EXPECT_EQ(state["peers"]["list"][0]["name"], "<script>alert('1')</script>??");
  const auto page = board.plan_page(1, now);
  ASSERT_TRUE(page) << page.error().message;
  EXPECT_EQ(page->find("<script"), std::string::npos);
  EXPECT_NE(page->find("&lt;script&gt;alert(&#39;1&#39;)"), std::string::npos);
  EXPECT_EQ(escaped("a & \"b\""), "a &amp; &quot;b&quot;");
  EXPECT_FALSE(board.plan_page(5, now));
}

TEST_F(Looking, StopAndResumeAreAskedAndThenLookedAtAgain) {
  broker.listed = {job_status(1, proto::JobState::Running)};
  look();
  EXPECT_TRUE(board.stop(1));
  EXPECT_EQ(broker.stopped, std::vector<proto::JobNumber>{1});
  broker.listed[0].state = proto::JobState::Stopping;
  EXPECT_EQ(look()["job"]["state"], "stopping");  // at once
  broker.answer = fail(ErrorCode::NotFound, "no such job");
  EXPECT_FALSE(board.resume(1));
  broker.away = Error{ErrorCode::Unavailable, "away"};
  EXPECT_FALSE(board.stop(1));
  EXPECT_EQ(broker.stopped.size(), 1u);
}

}  // namespace
}  // namespace weft::ui
