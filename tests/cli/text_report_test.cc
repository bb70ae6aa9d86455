// What a person sees of a run: on a terminal one line that is rewritten, in a pipe a line now and then; and
// lines that stay, each with something new.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cli/live_line.h"
#include "cli/report.h"
#include "cli/stage_watch.h"
#include "tests/cli/terminal.h"

namespace weft::cli {
namespace {

using Lines = std::vector<std::string>;

train::Event step(uint64_t number, double seconds = 0.05) {
  return train::StepEvent{.step = number,
                          .loss = 2.5,
                          .learning_rate = 1e-3,
                          .seconds = seconds,
                          .samples_per_second = 64 / seconds,
                          .gradient_norm = 1.5};
}
train::Event start(uint64_t steps) {
  train::StartEvent event;
  event.steps = steps;
  event.batch_size = 64;
  return event;
}

proto::JobStatus status(std::vector<double> busy, proto::PlanVersion plan = 1) {
  proto::JobStatus status;
  status.job = 7;
  status.state = proto::JobState::Running;
  status.plan_version = plan;
  status.steps = 100;
  const char* names[] = {"anna", "bert", "carl", "dora"};
  for (uint32_t s = 0; s < busy.size(); ++s) {
    proto::StageStatus stage;
    stage.seat = {s};
    stage.peer.digest.bytes[0] = static_cast<uint8_t>(s);
    stage.peer_name = s < 4 ? names[s] : "peer";
    stage.busy = busy[s];
    if (s > 0 && busy[s] > 0) stage.links = {{.seat = {s - 1}, .bytes_sent = 2048, .seconds_waiting = 0.012}};
    status.stages.push_back(stage);
  }
  return status;
}

// Of a job that saves, so many MiB of 128.
proto::JobStatus saving(int64_t mebibytes, uint64_t step = 100) {
  proto::JobStatus job = status({});
  job.saving.step = step;
  job.saving.bytes = {int64_t{128} << 20};
  job.saving.saved = {mebibytes << 20};
  return job;
}

bool starts_with(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }
bool is_of_a_step(const std::string& line) { return line.find("  loss 2.5") != std::string::npos; }
size_t steps_in(const Lines& lines) {
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), is_of_a_step));
}
size_t count_of(const Lines& lines, const std::string& with) {
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(),
                                           [&](const std::string& line) { return starts_with(line, with); }));
}

// A report on a terminal whose clock moves by hand.
struct OnTerminal {
  explicit OnTerminal(uint16_t columns, bool verbose = false)
      : terminal(columns),
        report(make_text_report(terminal.file(), {.verbose = verbose, .now = [this] { return now; }})) {}
  // Whatever happens, no line is longer than its row (those that tests give are not) and none goes blank.
  std::string show(const RunEvent& event, Duration after = std::chrono::milliseconds(200)) {
    now += after;
    report->show(event);
    const std::string bytes = terminal.read();
    EXPECT_EQ(terminal.wraps(), 0) << bytes;
    EXPECT_EQ(terminal.blanks(), 0) << bytes;
    return bytes;
  }
  const Lines& rows() const { return terminal.rows(); }

  test::Terminal terminal;
  Instant now = Instant{} + std::chrono::hours(1);
  std::unique_ptr<Report> report;
};

TEST(OnATerminal, StepsAreOneLineThatIsRewritten) {
  OnTerminal on(100);
  on.show(start(1000));
  on.show(StateEvent{7, "running", "", 0});
  const size_t before = on.rows().size();
  for (uint64_t i = 1; i <= 1000; ++i) {
    on.show(step(i));
    if (i % 20 == 0) on.show(StatusEvent{status({0.6, 0.5})});
    ASSERT_EQ(steps_in(on.rows()), 1u) << "after step " << i;
  }
  ASSERT_EQ(on.rows().size(), before + 3) << "it, and a line for each stage";
  const std::string& last = on.rows()[before + 1];
  EXPECT_TRUE(starts_with(last, "step 1000/1000  loss 2.5000  1280 samples/s  busy 60 50%")) << last;
}

TEST(OnATerminal, ARewritingIsOneTextAndTheRestCleared) {
  OnTerminal on(100);
  on.show(start(100));
  on.show(step(1));
  const std::string bytes = on.show(step(2));
  EXPECT_EQ(bytes, "\r" + on.rows().back() + "\033[K");
  EXPECT_EQ(on.show(step(3), std::chrono::milliseconds(50)), "") << "too soon after the last one";
  EXPECT_NE(on.show(step(4), std::chrono::milliseconds(50)), "");
}

TEST(OnATerminal, TheLineIsCutToTheWidthWithWholePartsAndFollowsTheWindow) {
  OnTerminal on(44);
  on.show(StatusEvent{status({})});
  on.show(step(1));
  EXPECT_EQ(on.rows().back(), "5s left  step   1/100  loss 2.5000");
  on.terminal.resize(30);
  on.show(step(2));
  EXPECT_EQ(on.rows().back(), "5s left  step   2/100");
  on.terminal.resize(9);
  on.show(step(3));
  EXPECT_EQ(on.rows().back(), "5s left") << "how long it takes is the last thing to go";
}

TEST(OnATerminal, SaysHowManyReplicasThereAreAndWhenTheyAgreed) {
  OnTerminal on(100);
  proto::JobStatus state = status({});
  state.replicas.steps = {30, 30, 10};
  on.show(StatusEvent{state});
  on.show(step(1));
  EXPECT_NE(on.rows().back().find("  1280 samples/s  3 replicas"), std::string::npos) << on.rows().back();
  state.replicas.agreed_step = 70;
  state.replicas.seconds_since_agreement = 12;
  on.show(StatusEvent{state});
  on.show(step(2));
  EXPECT_NE(on.rows().back().find("  3 replicas, agreed 12s ago"), std::string::npos) << on.rows().back();
}

TEST(OnATerminal, LinesThatStayStandAboveAndOnceEach) {
  OnTerminal on(100);
  on.show(start(100));
  for (uint64_t i = 1; i <= 100; ++i) {
    on.show(step(i));
    if (i == 40) on.show(NoticeEvent{7, i, "peer carl is gone"});
    if (i % 10 == 0) on.show(train::Event(train::CheckpointEvent{i, {}}));
  }
  EXPECT_EQ(count_of(on.rows(), "notice: peer carl is gone"), 1u);
  EXPECT_EQ(steps_in(on.rows()), 1u);
  EXPECT_EQ(count_of(on.rows(), "checkpoint after step 100"), 1u);
  EXPECT_EQ(count_of(on.rows(), "checkpoint"), 1u) << "those before are told by the live line";
  const auto last = std::find_if(on.rows().begin(), on.rows().end(),
                                 [](const std::string& row) { return starts_with(row, "step 100/100"); });
  ASSERT_NE(last, on.rows().end()) << "how it ended stays";
  EXPECT_NE(last->find("checkpoint 90"), std::string::npos) << *last;
  EXPECT_EQ(on.rows().back(), "") << "the cursor is below";
}

TEST(OnATerminal, OthersMayWriteInBetween) {
  OnTerminal on(100);
  on.show(start(100));
  on.show(step(1));
  on.report->make_way();
  std::fprintf(on.terminal.file(), "the broker is away\n");
  std::fflush(on.terminal.file());
  on.report->make_way();
  on.show(step(2));
  ASSERT_GE(on.rows().size(), 3u);
  const size_t rows = on.rows().size();
  EXPECT_TRUE(starts_with(on.rows()[rows - 3], "5s left  step   1/100"));
  EXPECT_EQ(on.rows()[rows - 2], "the broker is away");
  EXPECT_TRUE(starts_with(on.rows()[rows - 1], "5s left  step   2/100"));
}

TEST(OnATerminal, NamesDoNotSteerIt) {
  OnTerminal on(100);
  on.show(start(100));
  on.show(step(1));
  proto::JobStatus state = status({0.5});
  state.stages[0].peer_name =
      "\033[2Jeve\x07\xc2\x9b"
      "2J";  // the last one is an escape of Latin-1
  on.show(StatusEvent{state});
  EXPECT_EQ(count_of(on.rows(), "stage 1  ?[2Jeve??2J  50% busy"), 1u);
}

TEST(OnATerminal, ADumbOneIsAFile) {
  test::Terminal terminal(100);
  setenv("TERM", "dumb", 1);
  const auto report = make_text_report(terminal.file(), {});
  report->show(start(200));
  for (uint64_t i = 1; i <= 200; ++i) report->show(step(i));
  EXPECT_EQ(terminal.read().find('\033'), std::string::npos);
  EXPECT_EQ(steps_in(terminal.rows()), 3u) << "the first, one after five seconds, the last";
}

TEST(OnATerminal, TheClosingLinesAreWhatScriptsLookFor) {
  OnTerminal on(40);
  on.show(StatusEvent{status({})});
  on.show(step(1));
  on.show(step(2));
  train::ResultEvent result;
  result.steps = 2;
  result.seconds = 12.4;
  result.output = "a.onnx";
  result.metrics = {{"accuracy", 0.8934}, {"loss", 0.25}};
  const std::string bytes = on.show(train::Event(result));
  EXPECT_NE(bytes.find("\ntest accuracy: 0.8934\r\n"), std::string::npos) << bytes;
  EXPECT_NE(bytes.find("\ntraining seconds: 12\r\n"), std::string::npos) << bytes;
}

TEST(OnATerminal, WhatIsSavedBehindTheLastStepIsOneLineThatBecomesTheCheckpoint) {
  OnTerminal on(100);
  on.show(start(100));
  on.show(step(99));
  on.show(step(100));
  const size_t before = on.rows().size();
  EXPECT_EQ(on.show(StatusEvent{saving(1)}), "") << "not at once";
  on.show(StatusEvent{saving(3)}, std::chrono::seconds(2));
  EXPECT_EQ(on.rows().back(), "saving checkpoint after step 100: 3.0 of 128.0 MiB");
  for (int64_t saved = 4; saved <= 128; saved += 4) on.show(StatusEvent{saving(saved)});
  EXPECT_EQ(on.rows().back(), "saving checkpoint after step 100: 128.0 of 128.0 MiB");
  EXPECT_EQ(on.rows().size(), before) << "the row below the steps, rewritten";
  on.show(NoticeEvent{7, 100, "peer carl is gone"});
  EXPECT_EQ(on.rows().back(), "saving checkpoint after step 100: 128.0 of 128.0 MiB");
  on.show(train::Event(train::CheckpointEvent{100, {}}));
  on.show(StatusEvent{status({})}, std::chrono::seconds(9));
  ASSERT_GE(on.rows().size(), 3u);
  EXPECT_EQ(on.rows()[on.rows().size() - 3], "notice: peer carl is gone");
  EXPECT_EQ(on.rows()[on.rows().size() - 2], "checkpoint after step 100");
  EXPECT_EQ(on.rows().back(), "");
}

TEST(OnATerminal, WhatIsSavedBesideStepsIsInTheirLine) {
  OnTerminal on(160);
  on.show(start(100));
  on.show(step(51));
  on.show(StatusEvent{saving(3, 50)});
  EXPECT_NE(on.rows().back().find("  saving checkpoint after step 50: 3.0 of 128.0 MiB  "), std::string::npos)
      << on.rows().back();
  on.show(train::Event(train::CheckpointEvent{50, {}}));
  on.show(step(52));
  EXPECT_EQ(on.rows().back().find("saving"), std::string::npos) << on.rows().back();
  EXPECT_NE(on.rows().back().find("  checkpoint 50  "), std::string::npos) << on.rows().back();
  EXPECT_EQ(steps_in(on.rows()), 1u);
}

TEST(OnATerminal, ALastStepThatIsDoneOnlyWithItsCheckpointSaysThatInPlaceOfATime) {
  OnTerminal on(100);
  on.show(start(100));
  on.show(step(99));
  EXPECT_TRUE(starts_with(on.rows().back(), "0s left  step  99/100")) << on.rows().back();
  on.show(StatusEvent{saving(3)});
  EXPECT_TRUE(starts_with(on.rows().back(),
                          "saving checkpoint after step 100: 3.0 of 128.0 MiB  step  99/100  loss 2.5000"))
      << on.rows().back();
  EXPECT_EQ(on.rows().back().find("left"), std::string::npos) << on.rows().back();
  on.show(step(100));
  on.show(train::Event(train::CheckpointEvent{100, {}}));
  ASSERT_GE(on.rows().size(), 3u);
  EXPECT_TRUE(starts_with(on.rows()[on.rows().size() - 3], "step 100/100")) << on.rows().back();
  EXPECT_EQ(on.rows()[on.rows().size() - 2], "checkpoint after step 100");
  EXPECT_EQ(count_of(on.rows(), "saving"), 0u);
}

TEST(OnATerminal, AJobThatIsStoppedSaysWhatItWaitsFor) {
  OnTerminal on(100);
  on.show(start(100));
  on.show(step(51));
  on.show(StateEvent{7, "stopping", "", 51});
  proto::JobStatus stopping = saving(3, 52);
  stopping.state = proto::JobState::Stopping;
  on.show(StatusEvent{stopping}, std::chrono::seconds(2));
  EXPECT_EQ(on.rows().back(), "saving checkpoint after step 52: 3.0 of 128.0 MiB");
  on.show(train::Event(train::CheckpointEvent{52, {}}));
  EXPECT_EQ(count_of(on.rows(), "checkpoint after step 52"), 1u);
  EXPECT_EQ(count_of(on.rows(), "saving"), 0u);
}

// ---- in a file

// It is closed.
Lines lines_in(std::FILE* file) {
  std::rewind(file);
  Lines lines{""};
  for (int c = 0; (c = std::fgetc(file)) != EOF;)
    c == '\n' ? lines.emplace_back() : lines.back() += static_cast<char>(c);
  lines.pop_back();
  std::fclose(file);
  return lines;
}

Lines lines_of(const std::vector<RunEvent>& events, bool verbose = false) {
  std::FILE* file = std::tmpfile();
  EXPECT_NE(file, nullptr);
  {
    const auto report = make_text_report(file, {.verbose = verbose});
    for (const RunEvent& event : events) report->show(event);
  }
  return lines_in(file);
}

TEST(InAFile, AStepLineComesEveryFewSecondsAndStageLinesDoNotRepeat) {
  std::vector<RunEvent> events{start(400)};
  for (uint64_t i = 1; i <= 400; ++i) {  // 40 s
    events.push_back(step(i, 0.1));
    if (i % 50 == 0) events.push_back(StatusEvent{status({0.6, 0.5, 0.4, 0.3})});
  }
  const Lines lines = lines_of(events);
  EXPECT_GE(steps_in(lines), 8u);
  EXPECT_LE(steps_in(lines), 10u);
  EXPECT_EQ(count_of(lines, "stage "), 4u);
  EXPECT_EQ(lines.back(),
            "step 400/400  loss 2.5000  640 samples/s  busy 60 50 40 30%  norm 1.500  "
            "learning rate 1.00e-03");
  for (const std::string& line : lines) EXPECT_EQ(line.find_first_of("\033\r"), std::string::npos);
}

// Not an average of those before it, which would be another number.
TEST(InAFile, TheLossIsThatOfTheStep) {
  std::vector<RunEvent> events{start(3)};
  for (uint64_t i = 1; i <= 3; ++i) {
    train::StepEvent event = std::get<train::StepEvent>(step(i));
    event.loss = static_cast<double>(4 - i);
    events.push_back(train::Event(event));
  }
  const Lines lines = lines_of(events);
  EXPECT_TRUE(starts_with(lines.back(), "step 3/3  loss 1.0000  ")) << lines.back();
}

TEST(InAFile, ARunWithNothingLeftToTrainSaysSo) {
  train::StartEvent event;
  event.first_step = 41;
  event.steps = 40;
  EXPECT_EQ(lines_of({train::Event(event)}).back(),
            "nothing is left to train: the checkpoint is after step 40, the last");
}

// Steps of several machines are committed in bunches.
TEST(InAFile, ThePaceIsThatOfManySteps) {
  std::vector<RunEvent> events{start(400)};
  for (uint64_t i = 1; i <= 200; ++i) events.push_back(step(i, i % 2 == 0 ? 0.0999 : 0.0001));
  const Lines lines = lines_of(events);
  double loss = 0, rate = 0, left = 0;
  ASSERT_EQ(std::sscanf(lines.back().c_str(), "%lfs left  step 102/400  loss %lf  %lf samples/s", &left,
                        &loss, &rate),
            3)
      << lines.back();
  EXPECT_NEAR(rate, 1280, 20);
  EXPECT_EQ(left, 15);
}

TEST(InAFile, WhatIsSavedBehindTheLastStepIsALineNowAndThen) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  Instant now = Instant{} + std::chrono::hours(1);
  const auto report = make_text_report(file, {.now = [&] { return now; }});
  const auto show = [&](const RunEvent& event, int seconds) {
    now += std::chrono::seconds(seconds);
    report->show(event);
  };
  show(start(100), 0);
  show(step(99), 0);
  show(StatusEvent{saving(1, 90)}, 9);  // steps go on: nobody waits for it
  show(step(100), 0);
  show(StatusEvent{saving(1)}, 1);
  for (int64_t second = 2; second <= 21; ++second) show(StatusEvent{saving(second)}, 1);
  for (int i = 0; i < 20; ++i) show(StatusEvent{saving(21)}, 1);
  show(train::Event(train::CheckpointEvent{100, {}}), 0);
  const Lines lines = lines_in(file);
  Lines of_saving;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(of_saving),
               [](const std::string& line) { return line.find("saving") != std::string::npos; });
  EXPECT_EQ(of_saving, (Lines{"saving checkpoint after step 100: 2.0 of 128.0 MiB",
                              "saving checkpoint after step 100: 7.0 of 128.0 MiB",
                              "saving checkpoint after step 100: 12.0 of 128.0 MiB",
                              "saving checkpoint after step 100: 17.0 of 128.0 MiB",
                              "saving checkpoint after step 100: 21.0 of 128.0 MiB"}));
  EXPECT_EQ(lines.back(), "checkpoint after step 100");
}

TEST(InAFile, OfAPlanTheSummaryIsShown) {
  const PlanEvent plan{7, {"two stages", "bottleneck", "prediction", "  stage 1", "  cut", "predicted: 9"}};
  EXPECT_EQ(lines_of({plan}),
            (Lines{"plan: two stages", "plan: bottleneck", "plan: prediction", "plan: predicted: 9"}));
  EXPECT_EQ(lines_of({plan}, /*verbose=*/true).size(), plan.lines.size());
  const PlanEvent old{7, Lines(9, "a line of a broker that has no summary")};
  EXPECT_EQ(lines_of({old}).size(), 5u);
}

// ---- the stages

TEST(StageWatch, SaysAStageAgainOnlyWhenSomethingChanged) {
  StageWatch watch;
  EXPECT_TRUE(watch.changes(status({0, 0})).empty()) << "they have done nothing yet";
  EXPECT_EQ(watch.changes(status({0.6, 0})).size(), 1u);
  EXPECT_EQ(watch.brief(), "") << "not while a stage is unknown";
  EXPECT_EQ(watch.changes(status({0.6, 0.5})).size(), 1u);
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(watch.changes(status({i % 2 ? 0.5 : 0.7, 0.5})).empty()) << "a busy share that swings";

  proto::JobStatus moved = status({0.6, 0.5});
  moved.stages[1].peer.digest.bytes[0] = 9;
  moved.stages[1].peer_name = "emil";
  EXPECT_EQ(watch.changes(moved), (Lines{"stage 2  emil  50% busy  to stage 1: 2.0 KiB a step, waited 12 ms "
                                         "for it"}));
  EXPECT_TRUE(watch.changes(moved).empty());

  const Lines other_plan = watch.changes(status({0.6, 0.5}, 2));
  ASSERT_EQ(other_plan.size(), 2u);
  EXPECT_TRUE(starts_with(other_plan[0], "plan 2: stage 1  anna  60% busy"));
}

TEST(StageWatch, SaysWhenABusyShareChangesByMuch) {
  StageWatch watch;
  watch.changes(status({0.9, 0.5}));
  size_t lines = 0;
  for (int i = 0; i < 30; ++i) lines += watch.changes(status({0.5, 0.5})).size();
  EXPECT_EQ(lines, 1u);
  EXPECT_EQ(watch.brief(), "busy 50 50%");
}

TEST(StageWatch, OfManyStagesTheBriefIsARange) {
  StageWatch watch;
  watch.changes(status({0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}));
  EXPECT_EQ(watch.brief(), "busy 10 to 90%");
}

// ---- the line

TEST(LiveLine, WideCharactersAndBrokenOnesTakeTheirPlace) {
  EXPECT_EQ(fit({"日本語"}, 5), "日本") << "two columns each";
  EXPECT_EQ(fit({"áé", "b"}, 5), "áé  b");
  EXPECT_EQ(fit({"ab", "", "cd", "e"}, 6), "ab  cd") << "empty parts take nothing";
  EXPECT_EQ(fit({"ab", "cdef", "e"}, 6), "ab") << "what is less important does not stand in for it";
  EXPECT_EQ(printable("a\xff"
                      "b\xe6\x97"),
            "a?b??");
}

}  // namespace
}  // namespace weft::cli
