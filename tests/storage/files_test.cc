#include "storage/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "storage/sha256.h"
#include "tests/storage/failing.h"
#include "tests/support/scratch.h"

namespace weft::storage {
namespace {

using test::Scratch;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesAndFilesHashAsTheWhole) {
  const Scratch scratch;
  const std::string text(3'000'001, 'a');
  Sha256 hash;
  hash.update(std::string_view(text).substr(0, 1000));
  hash.update(std::string_view(text).substr(1000));
  EXPECT_EQ(hash.hex(), sha256_hex(text));
  EXPECT_EQ(sha256_of_file(scratch.write("f", text)).value(), sha256_hex(text));
}

TEST(Sha256, OnlyLowerCaseDigestsAreNames) {
  EXPECT_TRUE(is_sha256_hex(sha256_hex("")));
  EXPECT_FALSE(is_sha256_hex(std::string(63, 'a')));
  EXPECT_FALSE(is_sha256_hex(std::string(64, 'A')));
  EXPECT_FALSE(is_sha256_hex("../" + std::string(61, 'a')));
}

TEST(Files, WrittenBytesAreReadBack) {
  const Scratch scratch;
  Files files;
  const auto path = scratch.folder() / "f";
  ASSERT_TRUE(files.write_atomic(path, bytes_of("hello")));
  EXPECT_EQ(content(path), "hello");
  EXPECT_EQ(files.read(path, 5).value().size(), 5u);
  EXPECT_EQ(files.size(path).value(), 5u);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(files.list(scratch.folder(), 10).value(), (std::vector<std::string>{"f"}));
}

TEST(Files, PiecesAreWrittenWhereTheyBelong) {
  const Scratch scratch;
  Files files;
  const auto path = scratch.folder() / "f";
  ASSERT_TRUE(files.write_atomic_placed(path, [&](const Files::PlacedSink& sink) -> Status {
    WEFT_TRY_STATUS(sink(7, bytes_of("world")));
    EXPECT_FALSE(std::filesystem::exists(path));
    WEFT_TRY_STATUS(sink(0, bytes_of("hello")));
    return sink(5, bytes_of(","));
  }));
  EXPECT_EQ(content(path), std::string("hello,\0world", 12));
  const auto given_up = files.write_atomic_placed(path, [](const Files::PlacedSink& sink) -> Status {
    WEFT_TRY_STATUS(sink(0, bytes_of("other")));
    return fail(ErrorCode::Cancelled, "stopped");
  });
  EXPECT_EQ(given_up.error().code, ErrorCode::Cancelled);
  EXPECT_EQ(content(path), std::string("hello,\0world", 12));
  EXPECT_EQ(files.list(scratch.folder(), 10).value(), (std::vector<std::string>{"f"}));
}

TEST(Files, LimitsAndKindsAreChecked) {
  const Scratch scratch;
  Files files;
  const auto path = scratch.write("f", "hello");
  EXPECT_TRUE(fails_with(files.read(path, 4), ErrorCode::ResourceExhausted, "limit of 4"));
  EXPECT_TRUE(fails_with(files.read(scratch.folder(), 4), ErrorCode::InvalidArgument, "not a regular file"));
  EXPECT_TRUE(fails_with(files.read(scratch.folder() / "absent", 4), ErrorCode::NotFound, "absent"));
  EXPECT_TRUE(fails_with(files.list(scratch.folder(), 0), ErrorCode::ResourceExhausted, "more than 0"));
  std::array<std::byte, 4> four{};
  EXPECT_TRUE(fails_with(files.read_exactly(path, four), ErrorCode::Corrupted, "5 bytes where 4"));
  EXPECT_TRUE(fails_with(files.write_atomic(scratch.folder() / "no" / "f", {}), ErrorCode::NotFound, "no"));
}

TEST(Files, PipeIsRefusedAtOnce) {
  const Scratch scratch;
  const auto path = scratch.folder() / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  Files files;
  EXPECT_TRUE(fails_with(files.read(path, 4), ErrorCode::InvalidArgument, "not a regular file"));
}

TEST(Files, FailedWriteLeavesTheOldBytesAndNoTemporary) {
  const Scratch scratch;
  const auto path = scratch.write("f", "old");
  const auto count = std::make_shared<int>(0);
  int tried = 0;
  for (int at = 1;; ++at) {
    *count = 0;
    Files files(fail_at(at, false, count));
    const auto status = files.write_atomic(path, bytes_of("new"));
    if (status) break;
    ++tried;
    EXPECT_EQ(status.error().code, ErrorCode::Unavailable);
    const bool renamed = status.error().message.find("sync directory") != std::string::npos;
    EXPECT_EQ(content(path), renamed ? "new" : "old") << "operation " << at;
    EXPECT_EQ(Files().list(scratch.folder(), 10).value().size(), 1u);
    scratch.write("f", "old");
  }
  EXPECT_EQ(tried, 6);  // open, write, write, sync, rename, sync directory
}

TEST(Files, ProducerErrorAbandonsTheFile) {
  const Scratch scratch;
  Files files;
  const auto status =
      files.write_atomic_pieces(scratch.folder() / "f", [](const Files::Sink& sink) -> Status {
        if (auto written = sink(bytes_of("half")); !written) return written;
        return fail(ErrorCode::Cancelled, "stopped");
      });
  EXPECT_TRUE(fails_with(status, ErrorCode::Cancelled, "stopped"));
  EXPECT_TRUE(files.list(scratch.folder(), 10).value().empty());
}

TEST(Files, WhetherAFileCanBeWrittenIsKnownBefore) {
  const Scratch scratch;
  Files files;
  const auto path = scratch.folder() / "f";
  EXPECT_TRUE(files.check_writable(path));
  scratch.write("f", "old");
  EXPECT_TRUE(files.check_writable(path));
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(files.list(scratch.folder(), 10).value(), (std::vector<std::string>{"f"})) << "nothing is left";

  EXPECT_TRUE(fails_with(files.check_writable(scratch.folder()), ErrorCode::InvalidArgument, "is a folder"));
  EXPECT_TRUE(
      fails_with(files.check_writable(scratch.folder() / "."), ErrorCode::InvalidArgument, "is a folder"));
  EXPECT_TRUE(fails_with(files.check_writable("/dev/null"), ErrorCode::InvalidArgument, "no ordinary file"));
  EXPECT_TRUE(fails_with(files.check_writable(scratch.folder() / "no" / "f"), ErrorCode::NotFound, "no/f"));
  EXPECT_TRUE(fails_with(files.check_writable(path / "f"), ErrorCode::NotFound, "f/f"));
  EXPECT_TRUE(fails_with(files.check_writable(scratch.folder() / std::string(300, 'x')),
                         ErrorCode::InvalidArgument, "name another"));
  std::filesystem::create_symlink(scratch.folder(), scratch.folder() / "to_folder");
  EXPECT_TRUE(fails_with(files.check_writable(scratch.folder() / "to_folder"), ErrorCode::InvalidArgument,
                         "is a folder"));
  std::filesystem::create_symlink("nowhere", scratch.folder() / "to_nothing");
  EXPECT_TRUE(files.check_writable(scratch.folder() / "to_nothing"));
  EXPECT_FALSE(Files(fail_at(1, false, std::make_shared<int>(0))).check_writable(path));
}

// root may write where it has no right to.
TEST(Files, AFolderWithoutTheRightToWriteIsToldBefore) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const Scratch scratch;
  ASSERT_EQ(::chmod(scratch.folder().c_str(), 0555), 0);
  const Status status = Files().check_writable(scratch.folder() / "f");
  ASSERT_EQ(::chmod(scratch.folder().c_str(), 0755), 0);
  EXPECT_TRUE(fails_with(status, ErrorCode::PermissionDenied, "f"));
}

TEST(Files, AreTheSameByAnyNameAndLink) {
  const Scratch scratch;
  const auto path = scratch.write("f", "x"), other = scratch.write("g", "x");
  std::filesystem::create_symlink("f", scratch.folder() / "link");
  std::filesystem::create_hard_link(path, scratch.folder() / "hard");
  std::filesystem::create_symlink(".", scratch.folder() / "here");
  for (const char* name : {"f", "link", "hard", "here/f", "./here/here/link"})
    EXPECT_TRUE(Files::is_same_file(path, scratch.folder() / name)) << name;
  EXPECT_FALSE(Files::is_same_file(path, other));
  EXPECT_FALSE(Files::is_same_file(path, scratch.folder() / "absent"));
  EXPECT_FALSE(Files::is_same_file(scratch.folder() / "absent", scratch.folder() / "absent"));
}

TEST(FolderLock, SecondHolderIsRefusedUntilTheFirstIsGone) {
  const Scratch scratch;
  Files files;
  {
    const auto first = FolderLock::acquire(files, scratch.folder());
    ASSERT_TRUE(first.has_value());
    EXPECT_TRUE(
        fails_with(FolderLock::acquire(files, scratch.folder()), ErrorCode::Unavailable, "another run"));
  }
  EXPECT_TRUE(FolderLock::acquire(files, scratch.folder()).has_value());
}

}  // namespace
}  // namespace weft::storage
