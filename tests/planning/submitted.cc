#include "tests/planning/submitted.h"

#include "broker/pool/candidates.h"
#include "tests/train/reference_files.h"
#include "train/stored_base.h"
#include "train/submission.h"

namespace weft::test {

namespace fs = std::filesystem;

SubmittedJobs::SubmittedJobs() {
  auto blobs = storage::BlobStore::open(folder() / "blobs");
  EXPECT_TRUE(blobs.has_value());
  blobs_ = std::move(*blobs);
  fs::create_directories(jobs());
}

proto::SubmitJob SubmittedJobs::submit(const std::string& name, const std::vector<std::string>& sets) {
  const fs::path there = folder() / ("case-" + name);
  fs::create_directories(there);
  return submit_file(unpack_case(name, there), sets);
}

proto::SubmitJob SubmittedJobs::submit_file(const fs::path& job, const std::vector<std::string>& sets) {
  auto opened = train::open_job(job, sets);
  EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
  const auto stored = train::store_base(*opened, folder());
  EXPECT_TRUE(stored.has_value()) << (stored ? "" : stored.error().message);
  const auto ready = train::ready_job(*opened);
  EXPECT_TRUE(ready.has_value()) << (ready ? "" : ready.error().message);
  const train::Submission* packed = &ready->submission;
  for (const auto& [sha256, source] : packed->blobs) {
    std::vector<std::byte> bytes;
    EXPECT_TRUE(storage::read_source(source, [&](std::span<const std::byte> piece) -> Status {
                  bytes.insert(bytes.end(), piece.begin(), piece.end());
                  return {};
                }).has_value());
    EXPECT_EQ(blobs_->put(bytes).value(), sha256);
  }
  proto::SubmitJob submission{.name = packed->name, .job = packed->job};
  for (const auto& file : packed->files) {
    proto::PackedFile& into = submission.files.emplace_back();
    into.path = file.path;
    for (const storage::Piece& piece : file.pieces)
      into.pieces.push_back({.bytes = {reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size()},
                             .sha256 = piece.sha256,
                             .size = piece.size});
  }
  for (const onnx::TensorRow& row : packed->tensors)
    submission.tensors.push_back({row.name, row.role, row.reason, row.axis, row.frozen});
  return submission;
}

broker::PlanProcessOptions SubmittedJobs::process_options() const {
  return {.program = WEFT_PROGRAM, .blobs = folder() / "blobs", .jobs = jobs()};
}

std::vector<broker::Candidate> candidates(size_t count) {
  std::vector<broker::Candidate> peers;
  for (size_t i = 0; i < count; ++i) {
    broker::Candidate peer;
    peer.peer.digest.bytes[0] = static_cast<uint8_t>(i + 1);
    peer.name = "peer-" + std::to_string(i);
    peer.device = {.device = "cpu:1", .threads = 1, .memory = {int64_t{4} << 30}, .fingerprint = "equal"};
    peer.device.rates = {.matmul_flops_per_second = 1e9 * static_cast<double>(i + 1),
                         .convolution_flops_per_second = 1e9 * static_cast<double>(i + 1),
                         .memory_bytes_per_second = 1e10};
    peer.device.traits.fuse_elementwise = i % 2 == 0;
    peer.device.region = i % 2 == 0 ? "here" : "there";
    if (i % 3 != 0) peer.device.addresses = {"10.0.0." + std::to_string(i) + ":7700"};
    peers.push_back(std::move(peer));
  }
  return peers;
}

broker::StartPlanning request_for(proto::JobNumber job, proto::SubmitJob submission, size_t peers) {
  broker::StartPlanning request{
      .job = job, .plan_version = 1, .submission = std::move(submission), .candidates = candidates(peers)};
  request.cluster = broker::assumed_cluster(request.candidates);
  return request;
}

}  // namespace weft::test
