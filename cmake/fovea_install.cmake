# Installation: headers, static libraries, the binary, and a package that find_package(fovea) finds.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)

get_property(libraries GLOBAL PROPERTY FOVEA_LIBRARIES)
list(REMOVE_ITEM libraries fovea_testing)  # never shipped
install(TARGETS ${libraries} EXPORT foveaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS fovea RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/fovea DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT foveaTargets NAMESPACE fovea:: DESTINATION ${package_dir})

configure_package_config_file(cmake/foveaConfig.cmake.in ${PROJECT_BINARY_DIR}/foveaConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/foveaConfig.cmake ${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake
  cmake/fovea_dependencies.cmake DESTINATION ${package_dir})
