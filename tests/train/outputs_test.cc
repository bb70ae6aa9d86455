// Where a job's files may go: told before it begins, and never over what it reads.
#include "train/outputs.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "configs/job.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

class Outputs : public testing::Test {
 protected:
  Outputs() { test::unpack_case("gpt3", scratch_.folder()); }
  configs::Job job(const std::vector<std::string>& sets = {}) {
    auto loaded = configs::load_job(scratch_.folder() / "job.yaml", sets);
    if (!loaded) throw std::runtime_error(loaded.error().message);  // ends this test, not the others
    return std::move(*loaded);
  }
  fs::path at(const std::string& name) const { return scratch_.folder() / name; }
  void expect_refused(const configs::Job& job, ErrorCode code, const std::string& words) {
    const Status status = train::check_output(job, /*with_checkpoints=*/true);
    ASSERT_FALSE(status.has_value()) << job.output;
    EXPECT_EQ(status.error().code, code) << status.error().message;
    EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("output"), std::string::npos)
        << "the place: " << status.error().message;
  }
  void expect_refused(const std::string& output, ErrorCode code, const std::string& words) {
    expect_refused(job({"output=" + at(output).string()}), code, words);
  }
  test::Scratch scratch_;
};

TEST_F(Outputs, AFreePlaceAndAnOldOutputAreTaken) {
  const auto fine = job();
  EXPECT_TRUE(train::check_output(fine, true));
  scratch_.write(fine.output.filename().string(), "the output before");
  EXPECT_TRUE(train::check_output(fine, true));
  EXPECT_EQ(test::read_file(fine.output), "the output before");
}

TEST_F(Outputs, WhatTheJobReadsIsNotOverwrittenByAnyName) {
  expect_refused("data.npz", ErrorCode::InvalidArgument, "is data of the job");
  expect_refused("job.yaml", ErrorCode::InvalidArgument, "is the job file");
  expect_refused("model.onnx", ErrorCode::InvalidArgument, "is the model");
  fs::create_symlink("data.npz", at("link.onnx"));
  expect_refused("link.onnx", ErrorCode::InvalidArgument, "is data of the job");
  fs::create_hard_link(at("model.onnx"), at("hard.onnx"));
  expect_refused("hard.onnx", ErrorCode::InvalidArgument, "is the model");
  fs::create_directory_symlink(".", at("here"));
  expect_refused("here/job.yaml", ErrorCode::InvalidArgument, "is the job file");
}

// Of what the command line says, too, and where a link is what the job names.
TEST_F(Outputs, NorIsWhatTheCommandLineNames) {
  fs::create_symlink("data.npz", at("named.npz"));
  const std::string output = "output=" + at("data.npz").string();
  expect_refused(job({"data.train.path=" + at("named.npz").string(), output}), ErrorCode::InvalidArgument,
                 "is data of the job");
  fs::copy(at("data.npz"), at("test.npz"));
  expect_refused(job({"data.test={type: npz, path: " + at("test.npz").string() + "}",
                      "output=" + at("test.npz").string()}),
                 ErrorCode::InvalidArgument, "is data of the job");
}

TEST_F(Outputs, NorByAFileBesideTheOutput) {
  fs::copy(at("model.onnx"), at("a.inference.onnx"));
  expect_refused(job({"model=" + at("a.inference.onnx").string(), "output=" + at("a.onnx").string()}),
                 ErrorCode::InvalidArgument, "written beside it");
  fs::copy(at("model.onnx"), at("b.onnx.partial"));
  expect_refused(job({"model=" + at("b.onnx.partial").string(), "output=" + at("b.onnx").string()}),
                 ErrorCode::InvalidArgument, "written beside it");
}

TEST_F(Outputs, FoldersDevicesAndLongNamesAreNoOutput) {
  fs::create_directory(at("folder.onnx"));
  expect_refused("folder.onnx", ErrorCode::InvalidArgument, "is a folder");
  expect_refused(".", ErrorCode::InvalidArgument, "is a folder");
  expect_refused(job({"output=/dev/null"}), ErrorCode::InvalidArgument, "no ordinary file");
  fs::create_directory(at("twin.inference.onnx"));
  expect_refused("twin.onnx", ErrorCode::InvalidArgument, "is a folder");
  expect_refused(std::string(245, 'x') + ".onnx", ErrorCode::InvalidArgument, "name");
}

TEST_F(Outputs, AFileWhereCheckpointsGoIsTold) {
  scratch_.write("c.onnx.checkpoints", "");
  expect_refused("c.onnx", ErrorCode::InvalidArgument, "where checkpoints are kept");
  EXPECT_TRUE(train::check_output(job({"output=" + at("c.onnx").string()}), /*with_checkpoints=*/false));
}

TEST_F(Outputs, OfACommandAreCheckedAlike) {
  const std::vector<train::ReadFile> read{{"the data", at("data.npz")}};
  EXPECT_TRUE(train::check_output_file(at("out.npz"), read));
  EXPECT_FALSE(train::check_output_file(at("data.npz"), read));
  EXPECT_FALSE(train::check_trained_output(at("no/out.onnx"), {}));
}

}  // namespace
}  // namespace weft
