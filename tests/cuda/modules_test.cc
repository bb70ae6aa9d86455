// Opening backends that are libraries of their own: what is missing, or of another build, is said.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "peer/modules/modules.h"

namespace weft::peer {
namespace {

namespace fs = std::filesystem;

fs::path fresh_folder(const char* name) {
  const fs::path folder = fs::path(WEFT_TEST_TMP) / "modules" / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(Modules, OneThatIsNotThereIsNamedWithTheFoldersThatWereLookedAt) {
  const fs::path folder = fresh_folder("none");
  const auto module = open_module("cuda", {folder});
  ASSERT_FALSE(module.has_value());
  EXPECT_EQ(module.error().code, ErrorCode::NotFound);
  EXPECT_NE(module.error().message.find("weft_backend_cuda.so"), std::string::npos) << module.error().message;
  EXPECT_NE(module.error().message.find(folder.string()), std::string::npos) << module.error().message;
}

TEST(Modules, WhatIsNoLibraryIsSaidToBeNone) {
  const fs::path folder = fresh_folder("text");
  std::ofstream(folder / "weft_backend_cuda.so") << "not a library\n";
  const auto module = open_module("cuda", {folder});
  ASSERT_FALSE(module.has_value());
  EXPECT_EQ(module.error().code, ErrorCode::Unsupported);
  EXPECT_NE(module.error().message.find("does not open"), std::string::npos) << module.error().message;
  EXPECT_NE(module.error().message.find("is no library"), std::string::npos) << module.error().message;
  EXPECT_EQ(module.error().message.find("driver"), std::string::npos) << "none of that would help";
}

TEST(Modules, ALibraryWithoutTheSymbolIsNoModule) {
  const fs::path folder = fresh_folder("other");
  fs::copy_file(WEFT_OTHER_LIBRARY, folder / "weft_backend_other.so");
  const auto module = open_module("other", {folder});
  ASSERT_FALSE(module.has_value());
  EXPECT_EQ(module.error().code, ErrorCode::VersionMismatch);
}

TEST(Modules, OneOfAnotherBuildIsRefusedWithBothIds) {
  const fs::path folder = fresh_folder("old");
  fs::copy_file(WEFT_STALE_MODULE, folder / "weft_backend_stale.so");
  const auto module = open_module("stale", {folder});
  ASSERT_FALSE(module.has_value());
  EXPECT_EQ(module.error().code, ErrorCode::VersionMismatch);
  EXPECT_NE(module.error().message.find("weft 0.0.0 of long ago"), std::string::npos)
      << module.error().message;
  EXPECT_NE(module.error().message.find(std::string(build_id())), std::string::npos)
      << module.error().message;
}

TEST(Modules, OneOfThisBuildOpensOnceAndMakesABackend) {
  const std::vector<fs::path> folders{fresh_folder("none"), fs::path(WEFT_HOST_MODULES)};
  const auto module = open_module("cuda", folders);
  ASSERT_TRUE(module.has_value()) << module.error().message;
  EXPECT_EQ(*open_module("cuda", folders), *module);
  const auto backend = (*module)->make({.device = 0});
  ASSERT_TRUE(backend.has_value()) << backend.error().message;
  EXPECT_EQ((*backend)->name(), "cuda");
  const auto other = (*module)->make({.device = 5});
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::NotFound);
}

TEST(Modules, TheEnvironmentSaysWhere) {
  ::setenv("WEFT_MODULES", "/a:/b/c", 1);
  EXPECT_EQ(module_folders(), (std::vector<fs::path>{"/a", "/b/c"}));
  ::unsetenv("WEFT_MODULES");
  const std::vector<fs::path> otherwise = module_folders();
  EXPECT_FALSE(otherwise.empty());
  ::setenv("WEFT_MODULES", "", 1);
  EXPECT_EQ(module_folders(), otherwise) << "as if nothing were said";
  ::unsetenv("WEFT_MODULES");
}

}  // namespace
}  // namespace weft::peer
