// What a submission may cost the broker's disk, and what it may name.
#include "broker/service/submitted_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "broker/service/job_context.h"
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

TEST(SubmittedFiles, DataThatIsOneBlobGetsASecondNameAndTheModelStaysInPieces) {
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
  EXPECT_FALSE(fs::exists(jobs.jobs() / "1" / file_of(submission, "model/").path));
}

TEST(SubmittedFiles, AModelIsReadFromItsPiecesAndItsWeightsAreTheBlobsThatTheyAre) {
  test::SubmittedJobs jobs;
  proto::SubmitJob submission = jobs.submit("resnet18w16");
  const auto opened = open_submission(submission, jobs.blobs(), jobs.jobs() / "1");
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  SubmittedModel files(submission, file_of(submission, "model/").path, jobs.blobs());
  const auto unread = open_submitted(submission, files, 0);
  ASSERT_TRUE(unread.has_value()) << unread.error().message;
  size_t blobs = 0;
  for (const auto& [name, tensor] : opened->model.weights()) {
    const auto place = unread->place_of(name);
    if (!place || !files.blob_at(*place)) continue;
    ++blobs;
    EXPECT_EQ(*files.blob_at(*place), storage::sha256(tensor.bytes())) << name;
  }
  EXPECT_GT(blobs, 10u);
}

TEST(SubmittedFiles, RowsThatNameNoFloatTensorAreRefused) {
  test::SubmittedJobs jobs;
  const proto::SubmitJob right = jobs.submit("gpt3");
  ASSERT_GT(right.tensors.size(), 10u);
  const auto refusal = [&](const auto& change) {
    proto::SubmitJob wrong = right;
    change(wrong.tensors);
    SubmittedModel files(wrong, file_of(wrong, "model/").path, jobs.blobs());
    const auto model = open_submitted(wrong, files);
    return model ? std::string() : model.error().message;
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_NE(refusal([](auto& rows) { rows.push_back({.name = "nothing"}); }).find("'nothing'"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& rows) { rows.pop_back(); }).find("lacks"), std::string::npos);
  EXPECT_NE(refusal([](auto& rows) { rows[0].name = rows[1].name; }).find("twice"), std::string::npos);
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

// A client makes an npz of what a broker does not read: no photo, table or document of a stranger is opened
// here.
TEST(SubmittedFiles, DataThatABrokerDoesNotReadAreRefused) {
  test::SubmittedJobs jobs;
  const proto::SubmitJob right = jobs.submit("gpt3");
  for (const std::string_view type : {"csv", "npy", "images", "jsonl"}) {
    proto::SubmitJob wrong = right;
    const size_t at = wrong.job.find("data: "), end = wrong.job.find('\n', at);
    ASSERT_NE(at, std::string::npos);
    wrong.job.replace(at, end - at,
                      type == "csv"     ? "data: {train: {type: csv, path: data/t, columns: {a: a}}}"
                      : type == "npy"   ? "data: {train: {type: npy, arrays: {a: data/a}}}"
                      : type == "jsonl" ? "data: {train: {type: jsonl, path: data/a, tokenizer: /etc/passwd, "
                                          "text: a, sequence_length: 8}}"
                                        : "data: {train: {type: images, path: data, size: 8}}");
    const auto job = check_submission(wrong, jobs.blobs(), jobs.jobs() / "1");
    ASSERT_FALSE(job.has_value()) << type;
    EXPECT_NE(job.error().message.find("a type that a broker does not read"), std::string::npos)
        << job.error().message;
  }
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
