// The program, run in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft {

using test::Finished;
using test::Process;

class Cli : public testing::Test {
 protected:
  Finished run(const std::vector<std::string>& arguments) {
    return Process(arguments, scratch_.folder() / "stderr").finish();
  }
  std::string job(const std::string& name) { return test::unpack_case(name, scratch_.folder()).string(); }
  test::Scratch scratch_;
};

}  // namespace weft
