// What the broker tells of a job, as its user sees it: the same lines that training on one machine prints,
// and a few more.
#include "cli/run_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/job_table.h"
#include "cli/report.h"
#include "cli/stage_watch.h"

namespace weft::cli {
namespace {

using proto::JobEvent;
using proto::JobEventKind;
using proto::JobState;

// What a report prints of the events.
std::string printed(bool json, const std::vector<RunEvent>& events) {
  std::FILE* file = std::tmpfile();
  EXPECT_NE(file, nullptr);
  {
    const auto report = json ? make_json_report(file) : make_text_report(file, {});
    report->about(7);
    for (const RunEvent& event : events) report->show_at(event, 1'795'751'062'123);
  }
  std::rewind(file);
  std::string text;
  for (int c = 0; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}
nlohmann::json json_of(const RunEvent& event) { return nlohmann::json::parse(printed(true, {event})); }

JobEvent step_event() {
  return {.job = 7,
          .sequence = 12,
          .unix_ms = 1,
          .kind = JobEventKind::Step,
          .state = JobState::Running,
          .step = 3,
          .loss = 0.1,
          .learning_rate = 1e-3,
          .seconds = 0.25,
          .samples_per_second = 64,
          .gradient_norm = 1.5,
          .samples = 0,
          .metrics = {},
          .text = {}};
}

TEST(RunEvents, AStepIsTheLineOfOneMachine) {
  const train::StepEvent local{3, 0.1, 1e-3, 0.25, 64, 1.5};
  const auto event = to_run_event(step_event());
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(printed(true, {*event}), printed(true, {train::Event(local)}));
}

TEST(RunEvents, EachKindHasItsLine) {
  JobEvent event = step_event();
  event.kind = JobEventKind::Evaluation;
  event.samples = 100;
  event.metrics = {{"loss", 0.5}, {"accuracy", 0.75}};
  auto json = json_of(*to_run_event(event));
  EXPECT_EQ(json["event"], "evaluation");
  EXPECT_EQ(json["after_step"], 3);
  EXPECT_EQ(json["metrics"]["accuracy"], 0.75);
  EXPECT_TRUE(json["codecs"].is_null());
  event.text = "fp16, int4";
  EXPECT_EQ(json_of(*to_run_event(event))["codecs"], "fp16, int4");
  EXPECT_NE(printed(false, {*to_run_event(event)}).find("samples, links compressed (fp16, int4):"),
            std::string::npos);

  event.kind = JobEventKind::Checkpoint;
  json = json_of(*to_run_event(event));
  EXPECT_EQ(json["event"], "checkpoint");
  EXPECT_TRUE(json["path"].is_null()) << "it lies with the broker";

  event.kind = JobEventKind::State;
  event.state = JobState::Waiting;
  event.text = "waits for peers: needs 3, 1 is free";
  json = json_of(*to_run_event(event));
  EXPECT_EQ(json["event"], "state");
  EXPECT_EQ(json["state"], "waiting");
  EXPECT_EQ(json["reason"], event.text);
  EXPECT_EQ(json["time"], "2026-11-27T03:44:22.123Z");
  EXPECT_EQ(json["job"], 7);

  event.kind = JobEventKind::Plan;
  event.text = "first line\nsecond line\n";
  json = json_of(*to_run_event(event));
  EXPECT_EQ(json["event"], "plan");
  EXPECT_EQ(json["lines"], nlohmann::json::array({"first line", "second line"}));

  event.kind = JobEventKind::Notice;
  event.text = "peer b is gone";
  json = json_of(*to_run_event(event));
  EXPECT_EQ(json["event"], "notice");
  EXPECT_EQ(json["text"], "peer b is gone");

  event.kind = JobEventKind::Result;
  EXPECT_FALSE(to_run_event(event).has_value());
}

proto::JobStatus status() {
  proto::JobStatus status;
  status.job = 7;
  status.state = JobState::Running;
  status.step = 10;
  status.steps = 100;
  status.loss = 2.5;
  status.samples_per_second = 64;
  status.stages.push_back({.seat = {0},
                           .peer = {},
                           .peer_name = "ann",
                           .region = "oregon",
                           .busy = 0.9,
                           .links = {{.seat = {1},
                                      .bytes_sent = 2048,
                                      .seconds_waiting = 0.012,
                                      .bytes_dense = 7000,
                                      .bytes_encoded = 2000,
                                      .errors = 2,
                                      .error_sum = 0.02}},
                           .step = 10});
  return status;
}

TEST(RunEvents, OnlyStepLinesHaveALossOfTheirOwn) {
  EXPECT_TRUE(json_of(*to_run_event(step_event())).contains("loss"));
  const std::vector<RunEvent> others{SubmittedEvent{7},
                                     StateEvent{7, "running", "", 1},
                                     PlanEvent{7, {"a"}},
                                     NoticeEvent{7, 1, "b"},
                                     StatusEvent{status()},
                                     EndEvent{7, "failed", "c", 1, 2, {}, {}, {{"loss", 1.0}}},
                                     train::Event(train::EvaluationEvent{1, 2, {{"loss", 1.0}}}),
                                     train::Event(train::ResultEvent{})};
  for (const RunEvent& event : others) {
    const auto json = json_of(event);
    EXPECT_TRUE(json.contains("event"));
    EXPECT_FALSE(json.contains("loss")) << json;
  }
}

TEST(RunEvents, APlanNamesItsPeersAndWhatItPromises) {
  proto::JobEvent event{
      .job = 7, .kind = proto::JobEventKind::Plan, .seconds = 0.5, .samples_per_second = 16};
  event.text = "stage 1 on ann\nstage 2 on bob\n";
  event.peers = {"ann", "bob \"the fast\""};
  const auto json = json_of(*to_run_event(event));
  EXPECT_EQ(json["event"], "plan");
  EXPECT_EQ(json["job"], 7);
  ASSERT_EQ(json["stages"].size(), 2u);
  EXPECT_EQ(json["stages"][1]["stage"], 1);
  EXPECT_EQ(json["stages"][1]["device"], "bob \"the fast\"");
  EXPECT_EQ(json["predicted_step_seconds"], 0.5);
  EXPECT_EQ(json["predicted_samples_per_second"], 16);
  EXPECT_EQ(json["lines"].size(), 2u);
}

TEST(RunEvents, StatusTellsWhatStagesAndLinksDo) {
  const auto json = json_of(StatusEvent{status()});
  EXPECT_EQ(json["event"], "status");
  EXPECT_EQ(json["last_loss"], 2.5);
  EXPECT_EQ(json["stages"][0]["name"], "ann");
  EXPECT_EQ(json["stages"][0]["links"][0]["to_stage"], 1);
  EXPECT_EQ(json["stages"][0]["links"][0]["bytes_sent"], 2048);
  EXPECT_EQ(json["stages"][0]["links"][0]["bytes_dense"], 7000);
  EXPECT_EQ(json["stages"][0]["links"][0]["bytes_encoded"], 2000);
  EXPECT_EQ(json["stages"][0]["links"][0]["relative_error"], 0.01);
  const auto lines = stage_lines(status());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "stage 1  ann (oregon)  90% busy  to stage 2: 2.0 KiB a step (3.5 times smaller, error 1%), "
            "waited 12 ms for it");
}

TEST(RunEvents, StatusTellsWhatIsBeingSaved) {
  proto::JobStatus job = status();
  EXPECT_TRUE(json_of(StatusEvent{job})["saving"].is_null());
  EXPECT_EQ(saving_line(job), "");
  job.saving.step = 10;
  job.saving.bytes = {4096};
  job.saving.saved = {1024};
  const auto saving = json_of(StatusEvent{job})["saving"];
  EXPECT_EQ(saving["after_step"], 10);
  EXPECT_EQ(saving["bytes"], 4096);
  EXPECT_EQ(saving["saved_bytes"], 1024);
  const auto lines = job_lines(job, /*verbose=*/false, 0);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "saving checkpoint after step 10: 1.0 of 4.0 KiB"), 1);
  EXPECT_TRUE(job_table({job}, 0).back().ends_with("  saving checkpoint after step 10: 1.0 of 4.0 KiB"));
  job.reason = "waits for peers";
  EXPECT_TRUE(job_table({job}, 0).back().ends_with("  waits for peers"));
}

TEST(RunEvents, StatusTellsATimeUntilTheLastCheckpointIsWhatIsWaitedFor) {
  proto::JobStatus job = status();
  job.steps = 20;
  job.step = 19;
  job.samples_per_second = 64;
  job.seconds_left = 0.4;
  const auto tells_a_time = [&] {
    const auto lines = job_lines(job, /*verbose=*/false, 0);
    return std::any_of(lines.begin(), lines.end(),
                       [](const std::string& line) { return line.ends_with(", 64 samples/s, 0s left"); });
  };
  EXPECT_TRUE(tells_a_time());
  job.saving.step = 10;
  EXPECT_TRUE(tells_a_time()) << "steps go on beside it";
  job.saving.step = 20;
  EXPECT_FALSE(tells_a_time());
  job.saving.step = 0;
  job.step = 20;
  EXPECT_FALSE(tells_a_time());
}

TEST(RunEvents, NumbersThatAreNotFiniteAreNull) {
  JobEvent event = step_event();
  event.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(json_of(*to_run_event(event))["loss"].is_null());
}

TEST(RunEvents, TextSaysInPlainWordsWhatHappens) {
  JobEvent waiting = step_event();
  waiting.kind = JobEventKind::State;
  waiting.state = JobState::Waiting;
  waiting.text = "waits for peers";
  const std::string text = printed(false, {*to_run_event(waiting), StatusEvent{status()},
                                           EndEvent{7, "stopped", "by its user", 4, 1, {}, {}, {}}});
  EXPECT_NE(text.find("job 7: waiting: waits for peers\n"), std::string::npos) << text;
  EXPECT_NE(text.find("stage 1  ann"), std::string::npos) << text;
  EXPECT_NE(text.find("job 7 stopped after step 4: by its user\n"), std::string::npos) << text;
  EXPECT_EQ(printed(false, {EndEvent{7, "stopped", "by its user", 0, 1, {}, {}, {}}}),
            "job 7 stopped: by its user\n");
  EXPECT_EQ(text.find('\033'), std::string::npos) << "a file gets no escape sequences";
}

TEST(RunEvents, WhatOnlyTheTrainingMachinesKnowIsNull) {
  train::StartEvent start;
  start.steps = 5;
  auto json = json_of(train::Event(start));
  EXPECT_TRUE(json["persistent_bytes"].is_null());
  EXPECT_TRUE(json["fingerprint"].is_null());
  start.fingerprint = "reference";
  start.persistent = {4096};
  json = json_of(train::Event(start));
  EXPECT_EQ(json["persistent_bytes"], 4096);
}

}  // namespace
}  // namespace weft::cli
