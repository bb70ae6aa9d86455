// What ended jobs left goes, and nothing else.
#include <gtest/gtest.h>

#include <set>

#include "broker/store/sqlite_store.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;
using proto::JobState;

Digest digest(uint8_t first) {
  Digest made;
  made.bytes[0] = first;
  return made;
}

std::vector<proto::TensorReference> tensor(uint8_t blob) {
  return {{dag::of_initializer("w"), {dag::DType::F32, dag::Shape({8})}, digest(blob)}};
}

class EndedRows : public ::testing::Test {
 protected:
  void SetUp() override { reopen(); }
  void reopen() {
    store_.reset();
    auto opened = open_sqlite_store(scratch_.folder() / "broker.sqlite");
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
  }
  void append(std::vector<Record> records) {
    const Status appended = store_->append(records);
    ASSERT_TRUE(appended) << appended.error().message;
  }
  // Its model is blob 1, which all have; its checkpoint and result are blobs of its own.
  void add(proto::JobNumber job, int64_t unix_ms, bool has_ended) {
    proto::SubmitJob submission{.name = "job", .job = "model: m.onnx\n", .stages = 1};
    submission.files = {{"model/m.onnx", {{"", digest(1), 7}}}};
    proto::JobEvent event{.job = job, .sequence = 1, .unix_ms = unix_ms};
    append({JobSubmitted{
                .job = job, .submitter = {digest(9)}, .submission = std::move(submission), .unix_ms = 1},
            event, CheckpointCommitted{job, 1, tensor(static_cast<uint8_t>(10 * job)), 0}});
    if (!has_ended) return;
    const proto::JobResult result{
        .job = job, .step = 1, .tensors = tensor(static_cast<uint8_t>(10 * job + 1))};
    append({JobChanged{.job = job, .state = JobState::Finished}, ResultCommitted{job, result},
            JobEnded{{digest(9)}, proto::JobStatus{.job = job, .state = JobState::Finished}}});
  }
  std::vector<proto::JobNumber> ended() {
    std::vector<proto::JobNumber> numbers;
    const auto jobs = store_->ended_jobs({}, 0, 100);
    for (const auto& job : *jobs) numbers.push_back(job.status.job);
    return numbers;
  }

  test::Scratch scratch_;
  std::unique_ptr<Store> store_;
};

TEST_F(EndedRows, ThoseThatEndedBeforeAreForgotten) {
  add(1, 1000, true);
  add(2, 5000, true);
  add(3, 1000, false);
  const auto tried = store_->forget_ended(5000, /*tries=*/true);
  ASSERT_TRUE(tried) << tried.error().message;
  EXPECT_EQ(tried->jobs, (std::vector<proto::JobNumber>{1}));
  EXPECT_EQ(tried->blobs, (std::set<Digest>{digest(10), digest(11)})) << "another has the model, too";
  EXPECT_EQ(ended(), (std::vector<proto::JobNumber>{2, 1})) << "it was only said";

  const auto forgotten = store_->forget_ended(5000, /*tries=*/false);
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->jobs, tried->jobs);
  EXPECT_EQ(forgotten->blobs, tried->blobs);
  reopen();
  EXPECT_EQ(ended(), (std::vector<proto::JobNumber>{2}));
  EXPECT_FALSE(store_->job(1)->has_value());
  EXPECT_TRUE(store_->events(1, 1, 10)->empty());
  EXPECT_TRUE(store_->job(2)->has_value());
  EXPECT_EQ(store_->load()->jobs.size(), 1u);
  EXPECT_EQ(store_->blobs_of_ended(0).value(), (std::set<Digest>{digest(1), digest(20), digest(21)}));
}

TEST_F(EndedRows, OneIsForgottenWhenItsUserSaysSo) {
  add(1, 1000, true);
  add(2, 5000, true);
  add(3, 1000, false);
  ASSERT_TRUE(store_->forget_job(2));
  EXPECT_EQ(ended(), (std::vector<proto::JobNumber>{1}));
  for (const proto::JobNumber job : {2, 3, 9})
    EXPECT_EQ(store_->forget_job(job).error().code, ErrorCode::NotFound) << job;
  reopen();
  EXPECT_EQ(ended(), (std::vector<proto::JobNumber>{1}));
  EXPECT_EQ(store_->load()->jobs.size(), 1u) << "one that goes on stays";
}

TEST_F(EndedRows, ANumberIsNeverGivenAgain) {
  add(1, 1000, true);
  add(7, 1000, true);
  EXPECT_EQ(store_->forget_ended(2000, false)->jobs.size(), 2u);
  reopen();
  EXPECT_EQ(store_->load()->next_job, 8u);
  EXPECT_TRUE(store_->forget_ended(2000, false)->jobs.empty());
  EXPECT_EQ(store_->load()->next_job, 8u);
}

}  // namespace
}  // namespace weft::broker
