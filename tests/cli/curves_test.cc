// The table of a run's curves, and what else hears a run beside its user.
#include "cli/curves.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "cli/notify.h"
#include "tests/support/scratch.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kTime = 1'795'751'062'123;

train::Event begun_at(uint64_t first_step) {
  train::StartEvent event;
  event.first_step = first_step;
  event.steps = 10;
  return event;
}
train::Event made_step(uint64_t number, bool skipped = false) {
  return train::StepEvent{
      .step = number,
      .loss = skipped ? std::numeric_limits<double>::quiet_NaN() : 1 / static_cast<double>(number),
      .learning_rate = 0.1,
      .seconds = 0.5,
      .samples_per_second = 16,
      .gradient_norm = 2,
      .skipped = skipped};
}
void hear(Listener& listener, const std::vector<train::Event>& events) {
  for (const train::Event& event : events) listener.hear(event, kTime, 0);
}

class Table : public testing::Test {
 protected:
  std::vector<std::string> rows() const {
    std::ifstream in(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  test::Scratch scratch_;
  fs::path path_ = scratch_.folder() / "trained.metrics.csv";
};

TEST_F(Table, HasARowForEachStepWithWhatWasEvaluatedAfterIt) {
  {
    const auto curves = make_curves(path_);
    hear(*curves, {begun_at(1), made_step(1), made_step(2, /*skipped=*/true), made_step(4),
                   train::EvaluationEvent{4, 100, {{"loss", 0.75}, {"accuracy", 0.5}}}});
  }
  EXPECT_EQ(rows(), (std::vector<std::string>{
                        "step,time,loss,learning_rate,gradient_norm,seconds,samples_per_second,skipped,"
                        "test_loss,test_accuracy",
                        "1,2026-11-27T03:44:22.123Z,1,0.1,2,0.5,16,0,,",
                        "2,2026-11-27T03:44:22.123Z,,0.1,2,0.5,16,1,,",
                        "4,2026-11-27T03:44:22.123Z,0.25,0.1,2,0.5,16,0,0.75,0.5"}));
}

TEST_F(Table, OfARunThatGoesOnHasEachStepOnce) {
  {
    const auto curves = make_curves(path_);
    hear(*curves, {begun_at(1), made_step(1), made_step(2), made_step(3), made_step(4), made_step(5)});
  }
  std::ofstream(path_, std::ios::app) << "6,2026-11-27T03";  // what a crash leaves
  {
    const auto curves = make_curves(path_);
    hear(*curves, {begun_at(4), made_step(4), made_step(5), made_step(6)});
  }
  std::vector<std::string> numbers;
  for (const std::string& row : rows()) numbers.push_back(row.substr(0, row.find(',')));
  EXPECT_EQ(numbers, (std::vector<std::string>{"step", "1", "2", "3", "4", "5", "6"}));
  {
    const auto curves = make_curves(path_);
    hear(*curves, {begun_at(1), made_step(1)});
  }
  EXPECT_EQ(rows().size(), 2u) << "a run from the start has a table of its own";
}

TEST_F(Table, ThatCannotBeWrittenIsSaidOnceAndHurtsNobody) {
  fs::create_directory(path_);
  testing::internal::CaptureStderr();
  {
    const auto curves = make_curves(path_);
    hear(*curves, {begun_at(1), made_step(1), made_step(2), begun_at(1)});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("trained.metrics.csv cannot be written"), std::string::npos) << said;
  EXPECT_EQ(said.find("cannot be written"), said.rfind("cannot be written"));
}

TEST(Crc32c, IsThatOfRfc3720) {
  std::string counting(32, '\0');
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(counting), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Notifier, RunsTheCommandWhenAJobEndsOrWaitsInItsCourse) {
  const test::Scratch scratch;
  const fs::path said = scratch.folder() / "said";
  {
    const auto notifier =
        make_notifier("echo \"$WEFT_JOB|$WEFT_STATE|$WEFT_TEXT\" >> '" + said.string() + "'", "resnet");
    for (const char* state : {"waiting", "running", "waiting", "waiting", "running", "failed"}) {
      notifier->hear(StateEvent{7, state, state == std::string("failed") ? "no luck; $(rm -rf /)" : "", 3},
                     kTime, 7);
    }
  }  // waits for what was started
  std::ifstream in(said);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());  // they run beside each other
  EXPECT_EQ(lines, (std::vector<std::string>{"7|failed|job 7 (resnet) failed: no luck; $(rm -rf /)",
                                             "7|waiting|job 7 (resnet) waits"}));
}

}  // namespace
}  // namespace weft::cli
