// Which commit this program was built from, for `weft --version`: its number, with "-changed" where files
// differ from it; "unknown" where neither git nor -DWEFT_COMMIT told.
#pragma once

namespace weft::cli {

extern const char* const kCommit;

}  // namespace weft::cli
