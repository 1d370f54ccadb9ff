package tiered.s3;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.Objects;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.profiles.ProfileFile;
import software.amazon.awssdk.profiles.ProfileFileLocation;

/**
 * The default credentials of AWS, with the files as they are now: the default chain alone reads them once, and a
 * session would go on with a key that was replaced. Drivers and executors make one for each file system.
 */
public final class CurrentCredentialsProvider implements AwsCredentialsProvider, AutoCloseable {
  private DefaultCredentialsProvider chain;
  private List<String> files = List.of();

  @Override
  public synchronized AwsCredentials resolveCredentials() {
    List<String> now =
        List.of(mark(ProfileFileLocation.credentialsFilePath()), mark(ProfileFileLocation.configurationFilePath()));
    if (chain == null || !Objects.equals(files, now)) {
      ProfileFile read = ProfileFile.defaultProfileFile();
      close();
      chain = DefaultCredentialsProvider.builder().profileFile(() -> read).build();
      files = now;
    }
    return chain.resolveCredentials();
  }

  @Override
  public synchronized void close() {
    if (chain != null) {
      chain.close();
      chain = null;
    }
  }

  /** Returns a text that changes when the file does; an empty one for no file. */
  private static String mark(Path file) {
    try {
      BasicFileAttributes found = Files.readAttributes(file, BasicFileAttributes.class);
      return found.lastModifiedTime() + " " + found.size() + " " + found.fileKey();
    } catch (IOException absent) {
      return "";
    }
  }
}
