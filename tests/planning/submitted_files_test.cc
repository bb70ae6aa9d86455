// What a submission may cost the broker's disk, and what it may name.
#include "broker/service/submitted_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/planning/submitted.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;

proto::PackedFile& file_of(proto::SubmitJob& submission, const std::string& start) {
  for (proto::PackedFile& file : submission.files)
    if (file.path.starts_with(start)) return file;
  ADD_FAILURE() << "no " << start;
  return submission.files.front();
}

TEST(SubmittedFiles, DataThatIsOneBlobGetsASecondNameAndTheModelGoesAgain) {
  test::SubmittedJobs jobs;
  proto::SubmitJob submission = jobs.submit("resnet18w16");
  const auto job = check_submission(submission, jobs.blobs(), jobs.jobs() / "1");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  ASSERT_TRUE(place_files(submission, *job, jobs.blobs(), jobs.jobs() / "1").has_value());
  const proto::PackedFile& data = file_of(submission, "data/");
  ASSERT_EQ(data.pieces.size(), 1u);
  struct stat status {};
  ASSERT_EQ(::stat((jobs.jobs() / "1" / data.path).c_str(), &status), 0);
  EXPECT_EQ(status.st_nlink, 2u);
  const fs::path model = jobs.jobs() / "1" / file_of(submission, "model/").path;
  EXPECT_TRUE(fs::exists(model));
  remove_model_files(submission, *job, jobs.jobs() / "1");
  EXPECT_FALSE(fs::exists(model));
  EXPECT_TRUE(fs::exists(jobs.jobs() / "1" / data.path));
}

// 6.7 KB once wrote 600 MiB.
TEST(SubmittedFiles, OneBlobNamedOverAndOverIsRefused) {
  test::SubmittedJobs jobs;
  proto::SubmitJob submission = jobs.submit("gpt3");
  const std::vector<std::byte> zeros(4 << 20);
  const Digest sha256 = jobs.blobs().put(zeros).value();
  proto::PackedFile& file = submission.files.emplace_back();
  file.path = "model/outside.bin";
  for (int i = 0; i < 150; ++i) file.pieces.push_back({.sha256 = sha256, .size = zeros.size()});
  const auto job = check_submission(submission, jobs.blobs(), jobs.jobs() / "1");
  ASSERT_FALSE(job.has_value());
  EXPECT_EQ(job.error().code, ErrorCode::ResourceExhausted);
  EXPECT_NE(job.error().message.find("'model/outside.bin'"), std::string::npos) << job.error().message;
  EXPECT_TRUE(fs::is_empty(jobs.jobs()));
}

TEST(SubmittedFiles, NamesAndBlobsMustBeThoseOfTheSubmission) {
  test::SubmittedJobs jobs;
  const proto::SubmitJob right = jobs.submit("gpt3");
  const auto refused = [&](const auto& change) {
    proto::SubmitJob wrong = right;
    change(wrong);
    const auto job = check_submission(wrong, jobs.blobs(), jobs.jobs() / "1");
    EXPECT_FALSE(job.has_value());
    return job ? ErrorCode::Internal : job.error().code;
  };
  EXPECT_EQ(refused([](auto& job) { file_of(job, "data/").path = "data/other"; }),
            ErrorCode::PermissionDenied);
  EXPECT_EQ(refused([](auto& job) { file_of(job, "data/").path = "../data"; }), ErrorCode::InvalidArgument);
  EXPECT_EQ(refused([](auto& job) { job.files.push_back(job.files.front()); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(refused([](auto& job) {
              const size_t at = job.job.find("data/");
              ASSERT_NE(at, std::string::npos);
              job.job.replace(at, 5, "../../data/");
            }),
            ErrorCode::PermissionDenied);
  EXPECT_EQ(refused([](auto& job) {
              job.files.push_back({.path = "more", .pieces = {{.sha256 = Digest{}, .size = 1}}});
            }),
            ErrorCode::NotFound);
  EXPECT_EQ(refused([](auto& job) {
              for (auto& piece : file_of(job, "model/").pieces)
                if (piece.sha256) ++piece.size;
            }),
            ErrorCode::Corrupted);
}

}  // namespace
}  // namespace weft::broker
